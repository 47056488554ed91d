"""A minimal agent: it sends a request, runs the commands of the answer, and repeats.

Usage: python small_agent.py TASK BASE_URL FOLDER. It uses only the standard library, so that it
starts fast.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

BASH = {
    "type": "function",
    "function": {
        "name": "bash",
        "parameters": {"type": "object", "properties": {"command": {"type": "string"}}},
    },
}


def ask(base_url: str, messages: list[dict[str, Any]]) -> dict[str, Any]:
    body = json.dumps({"model": "m", "messages": messages, "tools": [BASH]}).encode()
    key = os.environ.get("OPENAI_API_KEY", "none")
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    request = urllib.request.Request(  # noqa: S310
        f"{base_url}/chat/completions", body, headers
    )
    with urllib.request.urlopen(request) as answer:  # noqa: S310
        message: dict[str, Any] = json.load(answer)["choices"][0]["message"]
    return message


def main(task: str, base_url: str, folder: str) -> int:
    messages: list[dict[str, Any]] = [{"role": "user", "content": task}]
    outputs = []
    while calls := (answer := ask(base_url, messages)).get("tool_calls"):
        messages.append(answer)
        for call in calls:
            command = json.loads(call["function"]["arguments"])["command"]
            ran = subprocess.run(
                ["bash", "-c", command], capture_output=True, text=True, check=False
            )
            outputs.append(ran.stdout + ran.stderr)
            result = {"role": "tool", "tool_call_id": call["id"], "content": outputs[-1]}
            messages.append(result)
            if "finished here" in ran.stdout:
                return done(folder, outputs)
    return done(folder, outputs)


def done(folder: str, outputs: list[str]) -> int:
    outcome = {"exit_status": "finished", "submission": "".join(outputs)}
    Path(folder, "result.json").write_text(json.dumps(outcome))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
