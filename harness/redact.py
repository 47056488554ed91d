"""Removes secrets from texts that are stored or shown: records, reports, logs.

In: a text, and the secrets or the settings in it. Out: the text with REDACTED in place of each
secret. Settings are found with regular expressions instead of parsers, because a text may be a file
of any format, a fragment or a command line, and everything but the secrets has to stay as it is.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from urllib.parse import quote, urlsplit

from servers.errors import InvalidInput

REDACTED = "***"
MIN_CHARS = 8
"""A shorter value, such as `none`, is not treated as a secret, because it occurs in other words."""
DISTINCTIVE_CHARS = 16
_SURELY = (
    r"api[_-]?key|secret(?:[_-]?(?:access[_-]?)?key)?|passw(?:or)?d|passphrase|authorization"
    r"|credentials?"
)
"""The endings of names whose value is always a secret. For other names, such as `eos_token` and
`sort-key`, the value has to look like a key."""
_ENDS = rf"(?:{_SURELY}|key(?:[_-]?id)?|token|(?<![a-z0-9])pat)"
_KEY = re.compile(_ENDS + r"\Z", re.IGNORECASE)
_IS_SURELY = re.compile(rf"(?:{_SURELY})\Z", re.IGNORECASE)
_LIKE_KEY = r"[\w+/=~-][\w+/=~.:-]{6,}[\w+/=~-]"
_A_KEY = re.compile(_LIKE_KEY, re.ASCII)
_NAME = re.compile(r"[\w-]+")
_BEARER = re.compile(rf"\b(Bearer\s+){_LIKE_KEY}", re.IGNORECASE | re.ASCII)
_IN_URL = re.compile(r"(?<=://)[^/\s]+(?=@)")
_SETTING = re.compile(
    rf"""(?P<name>(?<![\w-])[\w-]*{_ENDS})(?:["']?\s*(?P<sign>[:=])|(?=[ \t]))[ \t]*""",
    re.IGNORECASE,
)
_QUOTED = re.compile(r""""(?:[^"\\]|\\.)*"|'(?:[^']|'')*'""", re.DOTALL)
_CLOSES = r"""["'\]},;)]"""
_WORD_END = re.compile(rf"(?<!{_CLOSES}){_CLOSES}*(?:(?=\s)|\Z)")
_LINE_END = re.compile(
    rf"""(?<!{_CLOSES})(?<![ \t])(?:{_CLOSES}*[ \t]*(?=\n|\Z)|{_CLOSES}*["',](?=\s))|\Z"""
)
_BEGINS_LINE = re.compile(r"""[ \t]*(?:- +)*["']?""")
_NOTHING_YET = re.compile(r"[|>]?[-+0-9]*[ \t]*(?=\n)")


def is_secret_name(name: str) -> bool:
    """Whether a variable or an option of that name may hold a secret."""
    return _KEY.search(name) is not None


def secrets_of(env: Mapping[str, str]) -> tuple[str, ...]:
    """The values of the variables whose names say that they hold secrets."""
    return tuple(v for name, v in env.items() if is_secret_name(name) and len(v) >= MIN_CHARS)


def is_distinctive(key: str) -> bool:
    """Whether a key cannot be mistaken for a word. `anything` and `postgres` can be: they are keys
    somewhere, and occur in any conversation."""
    mixed = any(map(str.isalpha, key)) and any(map(str.isdigit, key))
    return len(key) >= DISTINCTIVE_CHARS or (len(key) >= MIN_CHARS and mixed)


def redact(text: str, keys: Iterable[str]) -> str:
    """Replaces the keys in a text, also in the forms in which JSON and URLs contain them."""
    for key in sorted(filter(None, keys), key=len, reverse=True):
        in_json = json.dumps(key)[1:-1]
        in_url = quote(key, safe="", errors="surrogateescape")
        for form in {key, in_json, in_json.replace("/", "\\/"), in_url}:
            text = text.replace(form, REDACTED)
    return text


def redact_settings(text: str) -> str:
    """Redacts a file of settings or a command.

    Replaces the values of names that end like those of secrets, tokens after `Bearer`, and what is
    before the @ of a URL.
    """
    text = redact(text, secrets_of(os.environ))
    text = _BEARER.sub(rf"\1{REDACTED}", _IN_URL.sub(REDACTED, text))
    parts, done = [], 0
    while found := _SETTING.search(text, done):
        is_option = found["sign"] is None and found["name"].startswith("-")
        given = found["sign"] is not None or is_option
        end = _end_of_key(text, found) if given else found.end()
        parts.append(text[done : found.end()])
        if text[found.end() : end].strip():
            parts.append(REDACTED)
        else:
            end = found.end()
        done = end
    return "".join(parts) + text[done:]


def _end_of_key(text: str, found: re.Match[str]) -> int:
    """The index at which the value of a setting ends, or begins if it is not a secret."""
    start, secret = found.end(), _IS_SURELY.search(found["name"])
    if quoted := _QUOTED.match(text, start):
        return quoted.end() if secret or _A_KEY.fullmatch(quoted[0][1:-1]) else start
    if found["sign"] == ":" and (secret or _NOTHING_YET.match(text, start)):
        line_end, end = _lines_of(text, found)
        first = text[line_end:end].split(None, 1)[:1]
        if end > line_end and (secret or _A_KEY.fullmatch(first[0])):
            return end
    of_words = secret and (found["sign"] == ":" or secret[0].lower() == "authorization")
    ends = (_LINE_END if of_words else _WORD_END).search(text, start)
    end = len(text) if ends is None else ends.start()
    return end if secret or _A_KEY.fullmatch(text, start, end) else start


def _lines_of(text: str, found: re.Match[str]) -> tuple[int, int]:
    """The end of a YAML setting's line, and the end of its value on the lines below.

    All lines below that are indented more belong to the value.
    """
    line_end = text.find("\n", found.end())
    line_end = len(text) if line_end < 0 else line_end
    before = text[text.rfind("\n", 0, found.start()) + 1 : found.start()]
    if not _BEGINS_LINE.fullmatch(before):
        return line_end, line_end
    depth = len(before.rstrip("\"'"))
    end = at = line_end
    while at < len(text):
        next_end = text.find("\n", at + 1)
        next_end = len(text) if next_end < 0 else next_end
        line = text[at + 1 : next_end]
        if line.strip():
            if len(line) - len(line.lstrip(" \t")) <= depth:
                break
            end = next_end
        at = next_end
    return line_end, end


def redact_command_line(words: Sequence[str]) -> list[str]:
    """Redacts a command line: values of options such as `--api-key`, and credentials in URLs."""
    found, option = [], ""
    for word in words:
        name, equals, value = word.partition("=")
        is_option = name.startswith("-")
        if option and not is_option and _is_secret_value(option, word):
            word = REDACTED
        elif equals and _sets_secret(name, value):
            word = f"{name}={REDACTED}"
        else:
            word = redact_settings(word)
        option = name if is_option and not equals and is_secret_name(name) else ""
        found.append(word)
    return found


def _sets_secret(name: str, value: str) -> bool:
    return bool(_NAME.fullmatch(name)) and is_secret_name(name) and _is_secret_value(name, value)


def _is_secret_value(name: str, value: str) -> bool:
    return bool(_IS_SURELY.search(name) or _A_KEY.fullmatch(value))


def server_url(url: str, asked_as: str) -> str:
    """Returns the URL of a server without `/v1`.

    Raises InvalidInput if it is not a URL of a server, or contains a key, which would be visible in
    process lists, shell histories and records.
    """
    base = url.strip().rstrip("/").removesuffix("/v1").rstrip("/")
    shown = re.split("[?#]", url.strip().rpartition("@")[2])[0]
    no_url = f"{asked_as} {shown}: no URL of a server, such as http://127.0.0.1:8000"
    try:
        parts = urlsplit(base)
        known = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        raise InvalidInput(no_url) from None
    if "@" in parts.netloc or parts.query or parts.fragment:
        safe = parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="")
        raise InvalidInput(
            f"{asked_as} {safe.geturl()}: leave out what stands before @ and after ?; a key is "
            "taken from TURNSTILE_API_KEY"
        )
    if not known:
        raise InvalidInput(no_url)
    return base
