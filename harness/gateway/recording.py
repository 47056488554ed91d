"""Records the turns of programs at a gateway.

In: the URLs of servers. Out: a folder with `turns.jsonl` (docs/reference/run-folder.md), which gets
a line when a turn ends and is a valid trace even if the gateway is killed, and at the end
`trace.jsonl`, the same turns in the native trace format.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path

from msgspec import UNSET

from harness.cells.folder import Lines
from harness.cells.locks import locked
from harness.gateway import Gateway, serve_gateway
from harness.gateway.access import Access
from harness.gateway.serving import LOOPBACK
from harness.gateway.turns import CLIENT_DISCONNECTED
from harness.replay.http import api_key
from harness.replay.identity import session_ends
from harness.replay.live_server import LiveServer, is_vllm, served_models
from harness.replay.load_reports import check_known, kv_tokens_of, replicas_of
from servers.basics.atomic import make_folder
from servers.basics.errors import InvalidInput, InvalidTrace
from servers.basics.redact import server_url
from servers.records.turns import TurnRecord
from servers.routers.runner import BuildRouter
from servers.routers.sticky import Sticky
from servers.variants import one_router
from traces import TraceSet, read_traces
from traces.formats.native import write_programs
from traces.token_counts import TokenCounter


@dataclass(slots=True)
class Recording:
    folder: Path
    gateway: Gateway
    base_url: str = ""
    keeps_messages: bool = False
    turns: int = 0
    failed: int = 0
    aborted: int = 0
    """Turns whose clients disconnected before the end of the answer."""
    uncounted: int = 0
    """Turns that succeeded, but whose token counts the server did not send."""
    counted: int = 0
    """Turns whose tokens were counted instead."""
    without_messages: int = 0
    """Turns that succeeded, but have no messages, because they were not chats."""

    @property
    def lines_file(self) -> Path:
        return self.folder / "turns.jsonl"

    @property
    def trace_file(self) -> Path:
        return self.folder / "trace.jsonl"

    def write_trace(self) -> TraceSet | None:
        """Write the trace after the gateway has ended. Returns None if no turn succeeded."""
        try:
            loaded = read_traces(
                self.lines_file, messages=self.keeps_messages and not self.without_messages
            )
        except InvalidTrace:
            return None
        write_programs(self.trace_file, loaded.programs)
        return loaded


def backends(urls: Sequence[str]) -> list[LiveServer]:
    """Raises InvalidInput for a server that does not respond. Only vLLM gets the program's id in
    `vllm_xargs`, because other servers reject fields that they do not know."""
    return [_backend(server_url(url, "the server")) for url in urls]


def _backend(base: str) -> LiveServer:
    tagged = any(map(is_vllm, served_models(base, "the server")))
    ends = session_ends(base)
    return LiveServer(base, tagged=tagged, kv_tokens=kv_tokens_of(base), session_ends=ends)


def router_for(text: str | None, servers: Sequence[LiveServer]) -> BuildRouter:
    """Return the router of the name in front of these servers. Raises InvalidInput."""
    if text is None:
        return Sticky
    if len(servers) < 2:
        raise InvalidInput(
            f"--router {text}: distributes turns over several servers; give the URLs of at least "
            "two, or remove it"
        )
    router = one_router(text)
    check_known(router(replicas_of(servers)), router.name, servers)
    return router


def default_folder(kind: str) -> Path:
    """Return the path of a folder that does not exist yet."""
    named = Path("runs") / kind / time.strftime("%Y-%m-%d_%H-%M-%S")
    names = [named, *(named.with_name(f"{named.name}-{k}") for k in range(2, 100))]
    return next((name for name in names if not name.exists()), named)


@asynccontextmanager
async def recording(
    servers: Sequence[LiveServer],
    folder: Path,
    host: str = LOOPBACK,
    port: int = 0,
    *,
    keeps_messages: bool = False,
    token: str | None = None,
    router: BuildRouter = Sticky,
    counter: TokenCounter | None = None,
) -> AsyncIterator[Recording]:
    """Run a gateway until the block ends. `counter`: counts tokens that a server does not report.

    Raises an OSError if the port is in use, and InvalidInput if the folder contains a sweep.
    """
    if (folder / "sweep.json").exists():
        raise InvalidInput(f"--out {folder}: contains a sweep (sweep.json); give another folder")
    make_folder(folder)
    if keeps_messages:
        folder.chmod(0o700)
    with locked(folder), closing(Lines(folder / "turns.jsonl")) as lines:

        def on_turn(record: TurnRecord) -> None:
            lines.append(record)
            lines.flush()
            recorded.turns += 1
            if record.error == CLIENT_DISCONNECTED:
                recorded.aborted += 1
            elif record.error is not None:
                recorded.failed += 1
            is_counted = bool(record.prompt_tokens and record.output_tokens)
            recorded.uncounted += record.error is None and not is_counted
            recorded.counted += record.counted is True
            recorded.without_messages += (
                record.error is None and keeps_messages and record.messages is UNSET
            )

        access = Access(token)
        gateway = Gateway(
            servers,
            on_turn,
            api_key(),
            keeps_messages=keeps_messages,
            access=access,
            router=router,
            counter=counter,
        )
        recorded = Recording(folder, gateway, keeps_messages=keeps_messages)
        async with serve_gateway(gateway, host, port) as base_url:
            recorded.base_url = base_url
            yield recorded
