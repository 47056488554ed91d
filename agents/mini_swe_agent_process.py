"""Runs one task with mini-swe-agent: PYTHON mini_swe_agent_process.py LAUNCH.json (`agents.agent`).

Runs in mini-swe-agent's Python. Prints `ready` when everything is imported, starts when it reads a
line, and writes `trajectory.json` and `result.json`. The exit code is 0 unless the agent raised an
exception.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from pathlib import Path
from typing import Any

DEFAULT_CONFIG = {"local": "mini.yaml", "docker": "benchmarks/swebench.yaml"}
"""mini-swe-agent's built-in configuration for each environment."""
NO_TIMEOUT_S = 86400
"""The harness limits the duration of turns. A timeout here would send the request again."""


def main() -> int:
    launch: dict[str, Any] = json.loads(Path(sys.argv[1]).read_bytes())
    ready = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the agent's own output goes to the log
    gc.disable()  # a seventh of the time of imports, whose objects stay
    from minisweagent.agents.default import DefaultAgent
    from minisweagent.config import builtin_config_dir, get_config_from_spec
    from minisweagent.environments import get_environment
    from minisweagent.models import get_model
    from minisweagent.utils.serialize import recursive_merge

    environment = launch["environment"]
    kind = environment["environment_class"]
    configs = [get_config_from_spec(str(builtin_config_dir / DEFAULT_CONFIG[kind]))]
    if launch["config"] is not None:
        configs.append(get_config_from_spec(launch["config"]))
    config = recursive_merge(*configs, _overrides(launch))
    # The key comes from OPENAI_API_KEY instead, because the trajectory contains these settings.
    config["model"]["model_kwargs"].pop("api_key", None)
    model = get_model(config=config["model"])
    folder = Path(launch["folder"])
    # This starts the container, before the time limit of the task begins.
    commands = get_environment(dict(config["environment"]))
    gc.freeze()
    gc.enable()
    print("ready", file=ready, flush=True)
    sys.stdin.readline()
    agent = None
    result = {"exit_status": "", "submission": ""}
    try:
        settings = {**config["agent"], "output_path": folder / "trajectory.json"}
        for interactive in ("mode", "confirm_exit", "whitelist_actions"):
            settings.pop(interactive, None)
        agent = DefaultAgent(model, commands, **settings)
        result |= agent.run(launch["task"])
    except Exception as error:
        result["exit_status"] = type(error).__name__
        raise
    finally:
        summary = {name: result[name] for name in ("exit_status", "submission")}
        if agent is not None:
            extra = {"info": summary, "instance_id": launch["program_id"]}
            agent.save(folder / "trajectory.json", extra)
        (folder / "result.json").write_text(json.dumps(summary))
    return 0


def _overrides(launch: dict[str, Any]) -> dict[str, Any]:
    """Return the harness's settings, which override the agent's configuration."""
    limit = {} if launch["max_turns"] is None else {"step_limit": launch["max_turns"]}
    return {
        "agent": {"cost_limit": 0.0, **limit},
        "environment": launch["environment"],
        "model": {
            "model_name": f"openai/{launch['model']}",
            "model_kwargs": {
                "api_base": launch["base_url"],
                "timeout": NO_TIMEOUT_S,
                "max_retries": 0,
            },
        },
    }


if __name__ == "__main__":
    sys.exit(main())
