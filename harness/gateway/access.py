"""Decides which clients may send requests to a gateway (docs/howto/gateway.md, SECURITY.md).

A request over a program's socket, or with a program's key, may come from that program only. A
request with the gateway's token may name any program. Without a token the gateway accepts all
requests over loopback, except those that a browser sends for a web page.
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

from servers.basics.errors import InvalidInput

TOKEN = "TURNSTILE_GATEWAY_TOKEN"  # noqa: S105
"""An environment variable, because all users of a machine can read command lines."""
MIN_TOKEN_CHARS = 16
MAX_ACTIVE_REQUESTS = 32
"""Limit of concurrent requests of a program with a socket or key. The known agents send one request
at a time, and the gateway buffers up to 32 MiB for each."""

_PROGRAM: ContextVar[str | None] = ContextVar("program")
"""The program that sent the current task's request. A context variable, because versions of aiohttp
differ in how to store values on a request."""
_PORT = re.compile(r":[0-9]*$")


def refusal(status: int, message: str, kind: str = "invalid_request_error") -> web.Response:
    """Return an error of the gateway itself, in the format of OpenAI's API."""
    error = {"message": message, "type": kind, "param": None, "code": None}
    return web.json_response({"error": error}, status=status)


class Access:
    def __init__(self, token: str | None = None, *, keyed: bool = False) -> None:
        """`token`: required from clients. `keyed`: requests over TCP need the key of a program."""
        self._token = token
        self._keyed = keyed
        self._keys: dict[bytes, str] = {}
        """Program ids by the digest of their key: the time of a lookup must not reveal a key."""
        self.programs_by_socket: dict[str, str] = {}
        """Program ids by the name of their Unix socket."""
        self._active: Counter[str] = Counter()

    @property
    def strips_client_key(self) -> bool:
        """Whether clients send a key for the gateway, which is not forwarded to the server."""
        return self._keyed or self._token is not None

    @contextmanager
    def issue_key(self, program_id: str) -> Iterator[str]:
        """Issue a key for the program, valid until the block ends."""
        key = secrets.token_urlsafe()
        self._keys[_digest(key)] = program_id
        try:
            yield key
        finally:
            del self._keys[_digest(key)]

    def admit(self, request: web.Request) -> web.Response | None:
        """Return None if the request is admitted, or else an error response.

        The program of the request (`admitted_as`) is determined before the body is read, because
        its key or socket may become invalid while the body arrives.
        """
        program = self._program(request)
        _PROGRAM.set(program)
        if program is not None:
            if request.match_info.get("program", program) != program:
                return refusal(403, f"this socket or key belongs to program {program}")
            if self._active[program] >= MAX_ACTIVE_REQUESTS:
                return refusal(429, f"program {program} has {MAX_ACTIVE_REQUESTS} active requests")
            return None
        if _socket(request) is not None:
            return refusal(403, "the program of this socket has ended")
        if self._keyed:
            return refusal(401, "this gateway is for agents only: send OPENAI_API_KEY as API key")
        if self._token is not None:
            if hmac.compare_digest(_key(request).encode(), self._token.encode()):
                return None
            return refusal(401, f"send the gateway's token, its {TOKEN}, as API key")
        if (page := _web_page(request)) is not None:
            return refusal(
                403, f"{page}: web pages have no access; other clients need {TOKEN} on both sides"
            )
        return None

    @contextmanager
    def active_request(self) -> Iterator[None]:
        program = admitted_as()
        if program is None:
            yield
            return
        self._active[program] += 1
        try:
            yield
        finally:
            self._active[program] -= 1
            if not self._active[program]:
                del self._active[program]

    def _program(self, request: web.Request) -> str | None:
        if (name := _socket(request)) is not None:
            return self.programs_by_socket.get(name)
        return self._keys.get(_digest(_key(request))) if self._keyed else None


def admitted_as() -> str | None:
    """Return the program that sent the current request, or None if the request may name any."""
    return _PROGRAM.get()


def check_listen(address: str, token: str | None) -> None:
    """Raises InvalidInput for an address that is invalid, or that requires a token."""
    try:
        local = ipaddress.ip_address(address).is_loopback
    except ValueError:
        raise InvalidInput(
            f"--listen {address}: not an IP address of this machine, such as 127.0.0.1"
        ) from None
    if token is None and not local:
        raise InvalidInput(
            f"--listen {address}: accessible from other machines; set {TOKEN} to a secret of at "
            f"least {MIN_TOKEN_CHARS} characters, which clients send as their API key"
        )
    if token is not None and (len(token) < MIN_TOKEN_CHARS or not token.isascii()):
        raise InvalidInput(f"{TOKEN}: must have at least {MIN_TOKEN_CHARS} characters, all ASCII")


def _socket(request: web.Request) -> str | None:
    name = request.transport and request.transport.get_extra_info("sockname")
    return name if isinstance(name, str) else None


def _key(request: web.Request) -> str:
    """Return the API key: OpenAI's clients send it as bearer token, Anthropic's as X-Api-Key."""
    kind, _, key = request.headers.get("Authorization", "").partition(" ")
    return key.strip() if kind.lower() == "bearer" else request.headers.get("X-Api-Key", "")


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode(errors="surrogateescape")).digest()


def _web_page(request: web.Request) -> str | None:
    """Return the header that shows that a web page in a browser sent the request, if any.

    Such a request has an Origin or Sec-Fetch-Site header, or its Host is neither an address nor
    localhost (DNS rebinding).
    """
    for header in ("Origin", "Sec-Fetch-Site"):
        if (value := request.headers.get(header)) not in (None, "none"):
            return f"{header} {value}"
    host = request.headers.get("Host", "localhost")
    name = _PORT.sub("", host).strip("[]").lower()
    try:
        ipaddress.ip_address("127.0.0.1" if name == "localhost" else name)
    except ValueError:
        return f"Host {host}"
    return None
