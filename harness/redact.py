"""Keys, and texts in which they must not be told: records, reports, logs.

In: what may hold one (the environment's variables, a request's headers, a command line) and a text.
Out: the text with HIDDEN in the place of each.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlsplit

from servers.errors import InvalidInput

HIDDEN = "***"
LEAST_CHARS = 8
"""A shorter value, such as `none`, is no key, and stands in too many words."""
NO_WORD_CHARS = 16
_SURELY = (
    r"api[_-]?key|secret(?:[_-]?(?:access[_-]?)?key)?|passw(?:or)?d|passphrase|authorization"
    r"|credentials?"
)
"""What ends so is a key whatever it is; of `eos_token` and `sort-key` the value has to look so."""
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


def is_key(name: str) -> bool:
    """Whether a variable, or an option, of that name holds one."""
    return _KEY.search(name) is not None


def keys_of(env: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(v for name, v in env.items() if is_key(name) and len(v) >= LEAST_CHARS)


def is_no_word(key: str) -> bool:
    """Of `anything` and `postgres` a conversation is full, though they are keys somewhere."""
    mixed = any(map(str.isalpha, key)) and any(map(str.isdigit, key))
    return len(key) >= NO_WORD_CHARS or (len(key) >= LEAST_CHARS and mixed)


def hidden(text: str, keys: Iterable[str]) -> str:
    """Also where a key is written as in JSON or in a URL."""
    for key in sorted(filter(None, keys), key=len, reverse=True):
        in_json = json.dumps(key)[1:-1]
        in_url = quote(key, safe="", errors="surrogateescape")
        for form in {key, in_json, in_json.replace("/", "\\/"), in_url}:
            text = text.replace(form, HIDDEN)
    return text


def hidden_in(value: Any, keys: Sequence[str]) -> Any:
    """In the texts of a value that can be JSON; names and numbers stay."""
    if isinstance(value, str):
        return hidden(value, keys)
    if isinstance(value, list):
        return [hidden_in(each, keys) for each in value]
    if isinstance(value, dict):
        return {name: hidden_in(each, keys) for name, each in value.items()}
    return value


def hidden_settings(text: str) -> str:
    """Of a file of settings, or a command: what is given for a name that ends as those of keys do,
    for `Bearer`, and before the @ of a URL."""
    text = hidden(text, keys_of(os.environ))
    text = _BEARER.sub(rf"\1{HIDDEN}", _IN_URL.sub(HIDDEN, text))
    told, done = [], 0
    while found := _SETTING.search(text, done):
        is_option = found["sign"] is None and found["name"].startswith("-")
        given = found["sign"] is not None or is_option
        end = _end_of_key(text, found) if given else found.end()
        told.append(text[done : found.end()])
        if text[found.end() : end].strip():
            told.append(HIDDEN)
        else:
            end = found.end()
        done = end
    return "".join(told) + text[done:]


def _end_of_key(text: str, found: re.Match[str]) -> int:
    """Where the value of a setting ends; where it begins, if it is no key."""
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
    """The end of a YAML setting's own line, and of the lines below that go on with its value: all
    that are deeper."""
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


def hidden_words(words: Sequence[str]) -> list[str]:
    """Of a command line: what follows `--api-key` and the like, and in URLs who asks."""
    found, asked = [], ""
    for word in words:
        name, given, value = word.partition("=")
        is_option = name.startswith("-")
        if asked and not is_option and _is_given_key(asked, word):
            word = HIDDEN
        elif given and _NAME.fullmatch(name) and is_key(name) and _is_given_key(name, value):
            word = f"{name}={HIDDEN}"
        else:
            word = hidden_settings(word)
        asked = name if is_option and not given and is_key(name) else ""
        found.append(word)
    return found


def _is_given_key(name: str, value: str) -> bool:
    return bool(_IS_SURELY.search(name) or _A_KEY.fullmatch(value))


def server_url(url: str, asked_as: str) -> str:
    """Without `/v1`. Raises a ValueError for what is no server's, or holds a key: it would stand in
    process lists, shells' histories and records."""
    base = url.strip().rstrip("/").removesuffix("/v1").rstrip("/")
    shown = re.split("[?#]", url.strip().rpartition("@")[2])[0]
    no_url = f"{asked_as} {shown}: no URL of a server, such as http://127.0.0.1:8000"
    try:
        parts = urlsplit(base)
        known = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        raise InvalidInput(no_url) from None
    if "@" in parts.netloc or parts.query or parts.fragment:
        told = parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="")
        raise InvalidInput(
            f"{asked_as} {told.geturl()}: leave out what stands before @ and after ?; a key is "
            "taken from TURNSTILE_API_KEY"
        )
    if not known:
        raise InvalidInput(no_url)
    return base
