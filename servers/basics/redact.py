"""Removes secrets from texts that are stored or shown: records, reports, logs.

In: a text, with known secrets or with settings in it. Out: the text with REDACTED in place of each
secret. Settings are found with regular expressions instead of parsers, because a text may be a file
of any format, a fragment or a command line, and everything except the secrets must stay unchanged.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from urllib.parse import quote, urlsplit

from servers.basics.errors import InvalidInput

REDACTED = "***"
MIN_CHARS = 8
"""Shorter values, such as `none`, are not treated as secrets, because they occur in other words."""
DISTINCTIVE_CHARS = 16
_DEFINITE_ENDINGS = (
    r"api[_-]?key|secret(?:[_-]?(?:access[_-]?)?key)?|passw(?:or)?d|passphrase|authorization"
    r"|credentials?"
)
"""Endings of names whose value is always a secret. With other endings, as in `eos_token` and
`sort-key`, the value has to look like a key."""
_ENDINGS = rf"(?:{_DEFINITE_ENDINGS}|key(?:[_-]?id)?|token|(?<![a-z0-9])pat)"
_SECRET_NAME = re.compile(_ENDINGS + r"\Z", re.IGNORECASE)
_DEFINITE_NAME = re.compile(rf"(?:{_DEFINITE_ENDINGS})\Z", re.IGNORECASE)
_KEY_PATTERN = r"[\w+/=~-][\w+/=~.:-]{6,}[\w+/=~-]"
_KEY_VALUE = re.compile(_KEY_PATTERN, re.ASCII)
_NAME = re.compile(r"[\w-]+")
_BEARER = re.compile(rf"\b(Bearer\s+){_KEY_PATTERN}", re.IGNORECASE | re.ASCII)
_IN_URL = re.compile(r"(?<=://)[^/\s]+(?=@)")
_SETTING = re.compile(
    rf"""(?P<name>(?<![\w-])[\w-]*{_ENDINGS})(?:["']?\s*(?P<sign>[:=])|(?=[ \t]))[ \t]*""",
    re.IGNORECASE,
)
_QUOTED = re.compile(r""""(?:[^"\\]|\\.)*"|'(?:[^']|'')*'""", re.DOTALL)
_CLOSING = r"""["'\]},;)]"""
_WORD_END = re.compile(rf"(?<!{_CLOSING}){_CLOSING}*(?:(?=\s)|\Z)")
_LINE_END = re.compile(
    rf"""(?<!{_CLOSING})(?<![ \t])(?:{_CLOSING}*[ \t]*(?=\n|\Z)|{_CLOSING}*["',](?=\s))|\Z"""
)
_LINE_START = re.compile(r"""[ \t]*(?:- +)*["']?""")
_BLOCK_HEADER = re.compile(r"[|>]?[-+0-9]*[ \t]*(?=\n)")


@lru_cache(4096)
def is_secret_name(name: str) -> bool:
    """Return whether a variable or option with this name may contain a secret. The variables of the
    environment are asked for each word of a command line."""
    return _SECRET_NAME.search(name) is not None


def secrets_of(env: Mapping[str, str]) -> tuple[str, ...]:
    """Return the values of the variables whose names indicate a secret."""
    return tuple(v for name, v in env.items() if is_secret_name(name) and len(v) >= MIN_CHARS)


def is_distinctive(key: str) -> bool:
    """Return whether a key cannot be confused with a word, unlike `postgres`."""
    mixed = any(map(str.isalpha, key)) and any(map(str.isdigit, key))
    return len(key) >= DISTINCTIVE_CHARS or (len(key) >= MIN_CHARS and mixed)


def redact(text: str, keys: Iterable[str]) -> str:
    """Replace keys in a text, including their forms in JSON strings and URLs."""
    for key in sorted(filter(None, keys), key=len, reverse=True):
        for form in _forms(key):
            text = text.replace(form, REDACTED)
    return text


def _forms(key: str) -> set[str]:
    """Return a key as it appears in plain text, in JSON strings and in URLs."""
    in_json = json.dumps(key)[1:-1]
    in_url = quote(key, safe="", errors="surrogateescape")
    return {key, in_json, in_json.replace("/", "\\/"), in_url}


def key_forms(key: str | None, *, only_distinctive: bool = False) -> tuple[bytes, ...]:
    """Return the forms of a key for `redact_bytes`; none for a key that is too short.

    `only_distinctive`: none for a key that could be an ordinary word either.
    """
    if key is None or len(key) < MIN_CHARS or (only_distinctive and not is_distinctive(key)):
        return ()
    return tuple(form.encode(errors="surrogateescape") for form in _forms(key))


def redact_bytes(data: bytes, forms: Sequence[bytes]) -> bytes:
    for form in forms:
        data = data.replace(form, REDACTED.encode())
    return data


def redact_settings(text: str) -> str:
    """Redact a settings file or a command.

    Replaces the values of names that indicate a secret, tokens after `Bearer`, and credentials in
    URLs (before the @).
    """
    text = redact(text, secrets_of(os.environ))
    text = _BEARER.sub(rf"\1{REDACTED}", _IN_URL.sub(REDACTED, text))
    parts, done = [], 0
    while setting := _SETTING.search(text, done):
        is_option = setting["sign"] is None and setting["name"].startswith("-")
        given = setting["sign"] is not None or is_option
        end = _value_end(text, setting) if given else setting.end()
        parts.append(text[done : setting.end()])
        if text[setting.end() : end].strip():
            parts.append(REDACTED)
        else:
            end = setting.end()
        done = end
    return "".join(parts) + text[done:]


def _value_end(text: str, setting: re.Match[str]) -> int:
    """Return the index at which a setting's value ends, or starts if the value is not a secret."""
    start, secret = setting.end(), _DEFINITE_NAME.search(setting["name"])
    if quoted := _QUOTED.match(text, start):
        return quoted.end() if secret or _KEY_VALUE.fullmatch(quoted[0][1:-1]) else start
    if setting["sign"] == ":" and (secret or _BLOCK_HEADER.match(text, start)):
        line_end, end = _indented_block(text, setting)
        first = text[line_end:end].split(None, 1)[:1]
        if end > line_end and (secret or _KEY_VALUE.fullmatch(first[0])):
            return end
    is_phrase = secret and (setting["sign"] == ":" or secret[0].lower() == "authorization")
    ends = (_LINE_END if is_phrase else _WORD_END).search(text, start)
    end = len(text) if ends is None else ends.start()
    return end if secret or _KEY_VALUE.fullmatch(text, start, end) else start


def _indented_block(text: str, setting: re.Match[str]) -> tuple[int, int]:
    """Return the end of a YAML setting's line, and the end of its value on the following lines.

    The value includes all following lines with a deeper indentation.
    """
    line_end = text.find("\n", setting.end())
    line_end = len(text) if line_end < 0 else line_end
    before = text[text.rfind("\n", 0, setting.start()) + 1 : setting.start()]
    if not _LINE_START.fullmatch(before):
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
    """Redact a command line: values of options such as `--api-key`, and credentials in URLs."""
    redacted, option = [], ""
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
        redacted.append(word)
    return redacted


def _sets_secret(name: str, value: str) -> bool:
    return bool(_NAME.fullmatch(name)) and is_secret_name(name) and _is_secret_value(name, value)


def _is_secret_value(name: str, value: str) -> bool:
    return bool(_DEFINITE_NAME.search(name) or _KEY_VALUE.fullmatch(value))


def server_url(url: str, label: str) -> str:
    """Return the URL of a server without `/v1`. Errors begin with `label`, such as `--engine`.

    Raises InvalidInput if it is not a URL of a server, or contains a key, which would be visible in
    process lists, shell histories and records.
    """
    base = url.strip().rstrip("/").removesuffix("/v1").rstrip("/")
    shown = re.split("[?#]", url.strip().rpartition("@")[2])[0]
    invalid = f"{label} {shown}: not the URL of a server, such as http://127.0.0.1:8000"
    try:
        parts = urlsplit(base)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        raise InvalidInput(invalid) from None
    if "@" in parts.netloc or parts.query or parts.fragment:
        safe = parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="")
        raise InvalidInput(
            f"{label} {safe.geturl()}: remove the part before @ and after ?; set "
            "TURNSTILE_API_KEY to give a key"
        )
    if not valid:
        raise InvalidInput(invalid)
    return base
