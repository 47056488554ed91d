"""Runs one OpenHands conversation: PYTHON -I openhands_process.py LAUNCH.json (`agents.agent`).

Runs in the Python with openhands-sdk and openhands-tools. Prints `ready` when everything is
imported and the tools have started, and starts the task when it reads a line. Writes
`openhands/ID/` (the events that the SDK persists) and `result.json`: `exit_status` is finished,
stuck, max iterations or error, and `submission` is the diff of the workspace. The exit code is 0
unless the SDK raised an exception.

The agent is the SDK's default agent without a browser. With `max_turns` it has no condenser,
because the condenser's calls would count as turns.
"""

from __future__ import annotations

import gc
import json
import os
import shutil
import subprocess
import sys
import traceback
import uuid
from pathlib import Path
from typing import Any

NO_TIMEOUT_S = 24 * 3600
"""The harness limits the duration of turns. A timeout here would send the request again."""
TRACING = ("OTEL_", "LMNR_", "LAMINAR_", "LANGFUSE_", "OPENHANDS_OBSERVABILITY_")


def main() -> int:
    launch = json.loads(Path(sys.argv[1]).read_bytes())
    _isolate(launch["folder"])
    ready = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the output of libraries goes to the log
    gc.disable()  # a seventh of the time of imports, whose objects stay
    conversation = _conversation(launch)
    conversation.send_message(launch["task"])  # starts the tools, without a model call
    gc.freeze()
    gc.enable()
    print("ready", file=ready, flush=True)
    if not sys.stdin.readline():
        conversation.close()
        return 1
    failed = False
    try:
        conversation.run()
    except Exception:
        failed = True
        traceback.print_exc()
    result = {
        "exit_status": _exit_status(conversation),
        "submission": _diff(launch["workspace"], launch["folder"]),
    }
    Path(launch["folder"], "result.json").write_text(json.dumps(result))
    conversation.close()
    return int(failed)


def _isolate(folder: str) -> None:
    """Set the home folder and disable telemetry. Call it before the SDK is imported."""
    for name in [name for name in os.environ if name.startswith(TRACING)]:
        del os.environ[name]
    os.environ.pop("OH_PERSISTENCE_DIR", None)
    os.environ |= {
        "HOME": folder,
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LOG_LEVEL": "ERROR",
        "OPENHANDS_SUPPRESS_BANNER": "1",
    }


def _conversation(launch: dict[str, Any]) -> Any:
    import openai.resources  # noqa: F401 (else the first turn imports it)
    from openhands.sdk import LLM, Conversation, LocalWorkspace
    from openhands.tools.preset.default import get_default_agent

    llm = LLM(
        usage_id="agent",
        model=f"openai/{launch['model']}",
        base_url=launch["base_url"],
        api_key=os.environ.get("OPENAI_API_KEY") or "none",
        api_mode="chat",
        timeout=NO_TIMEOUT_S,
        num_retries=1,  # attempts; a failed turn fails its job, so a retry cannot help
        input_cost_per_token=0.0,
        output_cost_per_token=0.0,
    )
    agent = get_default_agent(llm, cli_mode=True)
    # The default terminal, a tmux server, would outlive this process.
    params = {"terminal": {"terminal_type": "subprocess"}}
    tools = [
        tool.model_copy(update={"params": params.get(tool.name, tool.params)})
        for tool in agent.tools
    ]
    changes: dict[str, Any] = {"tools": tools}
    limits = {}
    if (max_turns := launch["max_turns"]) is not None:
        changes["condenser"] = None
        limits = {"max_iteration_per_run": max_turns}
    return Conversation(
        agent=agent.model_copy(update=changes),
        workspace=LocalWorkspace(working_dir=launch["workspace"]),
        persistence_dir=str(Path(launch["folder"], "openhands")),
        conversation_id=uuid.uuid5(uuid.NAMESPACE_OID, launch["program_id"]),
        tags={"program": launch["program_id"]},
        visualizer=None,
        delete_on_close=False,
        **limits,
    )


def _exit_status(conversation: Any) -> str:
    codes = (getattr(event, "code", None) for event in reversed(conversation.state.events))
    if next(filter(None, codes), None) == "MaxIterationsReached":
        return "max iterations"
    return str(conversation.state.execution_status.value)


def _diff(workspace: str, folder: str) -> str:
    """Return the diff of the workspace including new files, computed with a temporary index.

    It is empty if the workspace is not the root of a repository.
    """
    git = shutil.which("git")
    if git is None:
        return ""
    index = Path(folder, "submission.index").resolve()
    parent = str(Path(workspace).resolve().parent)
    env = {**os.environ, "GIT_INDEX_FILE": str(index), "GIT_CEILING_DIRECTORIES": parent}
    output = b""
    for command in (["read-tree", "HEAD"], ["add", "--all"], ["diff", "--cached"]):
        output = subprocess.run(  # noqa: S603
            [git, "-c", "safe.directory=*", *command],
            cwd=workspace,
            env=env,
            capture_output=True,
            check=False,
        ).stdout
    index.unlink(missing_ok=True)
    return output.decode(errors="replace")


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code)  # skips the libraries' exit handlers, which take two to three seconds
