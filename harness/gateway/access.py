"""Who may ask a gateway, and as which program (docs/howto/gateway.md, SECURITY.md).

By a program's own socket, or with its own key: as that program alone. With the gateway's token: as
any. On loopback without a token: whoever is on this machine, but for web pages in its browser.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
import secrets
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from aiohttp import web

from harness.gateway.refusals import refusal
from servers.errors import InvalidInput

TOKEN = "TURNSTILE_GATEWAY_TOKEN"  # noqa: S105
"""A variable, not an option: arguments are seen by everybody on the machine."""
LEAST_TOKEN_CHARS = 16
MOST_AT_ONCE = 32
"""Requests under way of a program that is held to its own name; no agent at hand asks more than one
at a time, and each may have 32 MiB here."""


_PROGRAM: ContextVar[str | None] = ContextVar("program")
"""Of the request that this task answers; storage on a request is another in each aiohttp."""
_PORT = re.compile(r":[0-9]*$")


class Access:
    def __init__(self, token: str | None = None, *, keyed: bool = False) -> None:
        """`token`: without it nobody gets in. `keyed`: who comes by no socket needs a program's
        key."""
        self._token = token
        self._keyed = keyed
        self._keys: dict[bytes, str] = {}
        """By digest, so that a look-up takes as long for a guess that is nearly right."""
        self.only: dict[str, str] = {}
        """By name of a socket: the program whose alone it is."""
        self._under_way: Counter[str] = Counter()

    @property
    def hides_key(self) -> bool:
        """What clients send as their key is for us, and not for the server."""
        return self._keyed or self._token is not None

    @contextmanager
    def key(self, program_id: str) -> Iterator[str]:
        """A new one, which nobody else has; it holds while the block lasts."""
        key = secrets.token_urlsafe()
        self._keys[_digest(key)] = program_id
        try:
            yield key
        finally:
            del self._keys[_digest(key)]

    def admit(self, request: web.Request) -> web.Response | None:
        """None where it may come in. As whom is decided here, once (`admitted_as`): while its body
        comes, keys and sockets end."""
        program = self._program(request)
        _PROGRAM.set(program)
        if program is not None:
            if request.match_info.get("program", program) != program:
                return refusal(403, f"this way to the gateway is for program {program} alone")
            if self._under_way[program] >= MOST_AT_ONCE:
                return refusal(429, f"program {program}: {MOST_AT_ONCE} requests are under way")
            return None
        if _socket(request) is not None:
            return refusal(403, "the program of this way to the gateway has ended")
        if self._keyed:
            return refusal(401, "this gateway is for agents alone: send OPENAI_API_KEY as key")
        if self._token is not None:
            if hmac.compare_digest(_key(request).encode(), self._token.encode()):
                return None
            return refusal(401, f"the gateway's token is wanted as API key: its {TOKEN}")
        if (page := _web_page(request)) is not None:
            return refusal(403, f"{page}: web pages may not ask; others set {TOKEN} on both sides")
        return None

    @contextmanager
    def under_way(self) -> Iterator[None]:
        program = admitted_as()
        if program is None:
            yield
            return
        self._under_way[program] += 1
        try:
            yield
        finally:
            self._under_way[program] -= 1
            if not self._under_way[program]:
                del self._under_way[program]

    def _program(self, request: web.Request) -> str | None:
        if (name := _socket(request)) is not None:
            return self.only.get(name)
        return self._keys.get(_digest(_key(request))) if self._keyed else None


def admitted_as() -> str | None:
    """The program that the request can be from alone which this task answers."""
    return _PROGRAM.get()


def check_listen(address: str, token: str | None) -> None:
    """Raises a ValueError for where nobody may listen, or not without a token."""
    try:
        local = ipaddress.ip_address(address).is_loopback
    except ValueError:
        raise InvalidInput(
            f"--listen {address}: not an address of this machine, such as 127.0.0.1"
        ) from None
    if token is None and not local:
        raise InvalidInput(
            f"--listen {address}: others could ask your server; set {TOKEN} to a secret of "
            f"{LEAST_TOKEN_CHARS} or more characters, which clients send as their API key"
        )
    if token is not None and (len(token) < LEAST_TOKEN_CHARS or not token.isascii()):
        raise InvalidInput(
            f"{TOKEN}: at least {LEAST_TOKEN_CHARS} characters, of ASCII, so that none can guess it"
        )


def _socket(request: web.Request) -> str | None:
    """The unix socket that it came by, if by one."""
    name = request.transport and request.transport.get_extra_info("sockname")
    return name if isinstance(name, str) else None


def _key(request: web.Request) -> str:
    """As OpenAI's clients send it."""
    kind, _, key = request.headers.get("Authorization", "").partition(" ")
    return key.strip() if kind.lower() == "bearer" else ""


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode(errors="surrogateescape")).digest()


def _web_page(request: web.Request) -> str | None:
    """How we know that a browser sends it for a page: by what it says of the page (Origin), or by
    the page's own name for this machine (DNS rebinding). A name of an address, or localhost, is no
    page's."""
    for header in ("Origin", "Sec-Fetch-Site"):
        if (said := request.headers.get(header)) not in (None, "none"):
            return f"{header} {said}"
    host = request.headers.get("Host", "localhost")
    name = _PORT.sub("", host).strip("[]").lower()
    try:
        ipaddress.ip_address("127.0.0.1" if name == "localhost" else name)
    except ValueError:
        return f"Host {host}"
    return None
