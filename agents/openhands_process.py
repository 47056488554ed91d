"""An OpenHands conversation as a process: `PYTHON openhands_process.py LAUNCH.json`.

In: LAUNCH.json with `program_id`, `task`, `base_url`, `model`, `workspace` (where tools run), `folder`
(for what it leaves, and its home), `max_turns` (iterations, or null for the SDK's own 500). It makes all ready, says `ready`
on stdout, and waits for a line on stdin. Out: `folder/openhands/<conversation>/` with the events that
the SDK persists, and `folder/result.json` with `exit_status` (finished, stuck, max iterations, error,
or the SDK's word for another state) and `submission` (the workspace's `git diff`). Exit code 1 where
the conversation broke.

Runs under the Python of an OpenHands environment, imports nothing of ours, and needs no network but
`base_url`. The SDK's default agent without browser, with its own prompts, tools and condenser; its
terminal is a subprocess also where tmux is installed, since a tmux server would outlive us.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import traceback
import uuid
from pathlib import Path
from typing import Any

TURN_WITHIN_S = 24 * 3600
"""The SDK would ask again after 300 s, which an overloaded server needs for an answer."""
TRACING = ("OTEL_", "LMNR_", "LAMINAR_", "LANGFUSE_", "OPENHANDS_OBSERVABILITY_")


def main() -> int:
    launch = json.loads(Path(sys.argv[1]).read_text())
    _alone(launch["folder"])
    ready = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer to our parent
    conversation = _conversation(launch)
    conversation.send_message(launch["task"])  # starts the tools; asks the model nothing
    print("ready", file=ready, flush=True)
    if not sys.stdin.readline():
        conversation.close()
        return 1
    broken = False
    try:
        conversation.run()
    except Exception:
        broken = True
        traceback.print_exc()
    result = {
        "exit_status": _exit_status(conversation),
        "submission": _diff(launch["workspace"], launch["folder"]),
    }
    Path(launch["folder"], "result.json").write_text(json.dumps(result))
    conversation.close()
    return int(broken)


def _alone(folder: str) -> None:
    """No home but ours, no telemetry, no look-ups in the network. Before the SDK is imported."""
    for name in [name for name in os.environ if name.startswith(TRACING)]:
        del os.environ[name]
    os.environ.pop("OH_PERSISTENCE_DIR", None)
    os.environ |= {
        "HOME": folder,
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LOG_LEVEL": os.environ.get("LOG_LEVEL", "ERROR"),
        "OPENHANDS_SUPPRESS_BANNER": "1",
    }


def _conversation(launch: dict[str, Any]) -> Any:
    import openai.resources  # noqa: F401, or the first turn does it
    from openhands.sdk import LLM, Conversation, LocalWorkspace
    from openhands.tools.preset.default import get_default_agent

    llm = LLM(
        usage_id="agent",
        model=f"openai/{launch['model']}",
        base_url=launch["base_url"],
        api_key=os.environ.get("OPENAI_API_KEY") or "none",
        api_mode="chat",
        timeout=TURN_WITHIN_S,
        input_cost_per_token=0.0,
        output_cost_per_token=0.0,
    )
    agent = get_default_agent(llm, cli_mode=True)
    terminal = {"terminal": {"terminal_type": "subprocess"}}
    tools = [
        tool.model_copy(update={"params": terminal.get(tool.name, tool.params)})
        for tool in agent.tools
    ]
    return Conversation(
        agent=agent.model_copy(update={"tools": tools}),
        workspace=LocalWorkspace(working_dir=launch["workspace"]),
        persistence_dir=str(Path(launch["folder"], "openhands")),
        conversation_id=uuid.uuid5(uuid.NAMESPACE_OID, launch["program_id"]),
        **({"max_iteration_per_run": most} if (most := launch["max_turns"]) else {}),
        visualizer=None,
        delete_on_close=False,
    )


def _exit_status(conversation: Any) -> str:
    codes = (getattr(event, "code", None) for event in reversed(conversation.state.events))
    if next(filter(None, codes), None) == "MaxIterationsReached":
        return "max iterations"
    return str(conversation.state.execution_status.value)


def _diff(workspace: str, folder: str) -> str:
    """With new files, through an index of our own; empty where the workspace is no repository,
    even inside of one."""
    index = Path(folder, "submission.index").resolve()
    git = "git -c safe.directory=* -c core.quotePath=false"
    said = subprocess.run(
        f"{git} read-tree HEAD; {git} add --all && {git} diff --cached",
        shell=True,
        cwd=workspace,
        env={
            **os.environ,
            "GIT_INDEX_FILE": str(index),
            "GIT_CEILING_DIRECTORIES": str(Path(workspace).resolve().parent),
        },
        capture_output=True,
        check=False,
    )
    index.unlink(missing_ok=True)
    return said.stdout.decode(errors="replace")


if __name__ == "__main__":
    sys.exit(main())
