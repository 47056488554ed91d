"""One task by mini-swe-agent: PYTHON mini_swe_agent_process.py LAUNCH.json (`agents.agent.Launch`).

Runs in the Python that has mini-swe-agent. Says `ready` on stdout once all is imported, begins at a
line on stdin, leaves `trajectory.json` and `result.json`. Exit code 0 where the agent came to an
end of its own.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

DEFAULT_CONFIG = {"local": "mini.yaml", "docker": "benchmarks/swebench.yaml"}
"""mini-swe-agent's own, by environment; swebench.yaml's is made for a container."""
NO_TIMEOUT_S = 86400
"""How long an answer may take is for the harness to say: a request given up is asked again."""


def main() -> int:
    launch: dict[str, Any] = json.loads(Path(sys.argv[1]).read_bytes())
    say = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the agent prints is for the log
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
    config = recursive_merge(*configs, _ours(launch))
    # The key is in OPENAI_API_KEY: settings are kept in the trajectory.
    config["model"]["model_kwargs"].pop("api_key", None)
    model = get_model(config=config["model"])
    folder = Path(launch["folder"])
    # A container and its image are there before its time runs.
    place = get_environment(dict(config["environment"]))
    print("ready", file=say, flush=True)
    sys.stdin.readline()
    agent = None
    result = {"exit_status": "", "submission": ""}
    try:
        settings = {**config["agent"], "output_path": folder / "trajectory.json"}
        for interactive in ("mode", "confirm_exit", "whitelist_actions"):
            settings.pop(interactive, None)
        agent = DefaultAgent(model, place, **settings)
        result |= agent.run(launch["task"])
    except Exception as error:
        result["exit_status"] = type(error).__name__
        raise
    finally:
        kept = {name: result[name] for name in ("exit_status", "submission")}
        if agent is not None:
            told = {"info": kept, "instance_id": launch["program_id"]}
            agent.save(folder / "trajectory.json", told)
        (folder / "result.json").write_text(json.dumps(kept))
    return 0


def _ours(launch: dict[str, Any]) -> dict[str, Any]:
    """What the harness decides, over what the agent's settings say."""
    limit = {} if launch["max_turns"] is None else {"step_limit": launch["max_turns"]}
    reach = {"api_base": launch["base_url"]}
    patience = {"timeout": NO_TIMEOUT_S, "max_retries": 0}
    return {
        "agent": {"cost_limit": 0.0, **limit},
        "environment": launch["environment"],
        "model": {
            "model_name": f"openai/{launch['model']}",
            "model_kwargs": {**reach, **patience},
        },
    }


if __name__ == "__main__":
    sys.exit(main())
