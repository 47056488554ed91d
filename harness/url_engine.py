"""A server that runs already, as the engine of a sweep: `--engine http://127.0.0.1:8000`.

It has its own scheduler, so there is one variant, under the name that the user gives it. Its cache
lives on from cell to cell: each cell gets token ids of its own.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.asked import Asked
from harness.client import API_KEY, api_key, authorization
from harness.course import Line
from harness.engine import Cannot, Job
from harness.live import Replica
from harness.serving import end_on_sigterm, replay_on
from servers.policies.base import Policy
from servers.variants import VARIANTS, Variant
from servers.vllm.model_folder import ORDINARY_TOKENS

ANSWER_WITHIN_S = 10.0
AS_SERVED = "as-served"


class NoServer(ValueError):
    """Nothing of use answers at `--engine URL`."""


@dataclass(frozen=True, slots=True)
class UrlEngine:
    name: str
    """Its URL."""
    model: str
    longest: tuple[int | None, str]
    events: Path | None
    turn_timeout_s: float
    text: bool
    is_vllm: bool
    """It takes `vllm_xargs`; others may refuse a field that they do not know."""
    hardware: str = "unknown"
    side_by_side: bool = False

    def told(self) -> str:
        return (
            f"engine {self.name}: a server that runs already, {self.model}; its scheduler and "
            "machine are its own business"
        )

    def sweep_json(self) -> dict[str, Any]:
        return {
            "engine": self.name,
            "hardware": self.hardware,
            "model": self.model,
            "server": {
                "turn_timeout_s": self.turn_timeout_s,
                "prompts": "text" if self.text else "tokens",
            },
        }

    def cell_json(self, _variant: Variant) -> dict[str, Any]:
        return self.sweep_json()

    def offload_json(self, _variant: Variant) -> None:
        return None

    def run(
        self,
        job: Job,
        on_turn: Callable[[Line], None],
        on_event: Callable[[Line], None],
        on_stage: Callable[[str], None],
    ) -> Line:
        end_on_sigterm()
        nonce = os.urandom(8).hex()
        seed = int.from_bytes(hashlib.sha256(f"{job.name} {nonce}".encode()).digest()[:8])
        done = replay_on(
            [Replica(self.name, self.events)],
            job,
            model=self.model,
            vocabulary=range(*ORDINARY_TOKENS),
            seed=seed,
            turn_timeout_s=self.turn_timeout_s,
            text=self.text,
            tagged=self.is_vllm,
            on_turn=on_turn,
            on_event=on_event,
        )
        return {**done, "prompt_seed": seed}


def url_engine(asked: Asked) -> tuple[tuple[Variant, ...], UrlEngine, tuple[Cannot, ...]]:
    asked.server.refuse_all(asked.engine, but=("turn_timeout_s", "text", "events"))
    url = asked.engine.rstrip("/").removesuffix("/v1")
    served = models_of(url, "--engine")
    chosen = [m for m in served if asked.model in (None, m.get("id"))]
    if not chosen:
        names = ", ".join(str(m.get("id")) for m in served)
        raise NoServer(f"--model {asked.model}: {url} serves {names or 'nothing'}")
    longest = chosen[0].get("max_model_len")
    if asked.server.events is not None and not asked.server.events.is_file():
        raise NoServer(f"--events {asked.server.events}: no such file; bench serve prints its name")
    engine = UrlEngine(
        name=url,
        model=str(chosen[0].get("id")),
        longest=(
            asked.max_model_len or (longest if isinstance(longest, int) else None),
            f"the {longest} that {url} takes",
        ),
        events=asked.server.events,
        turn_timeout_s=asked.server.turn_timeout_s,
        text=asked.server.text,
        is_vllm=says_vllm(chosen[0]),
    )
    return (_as_served(asked.policies),), engine, ()


def _as_served(policies: str) -> Variant:
    name = AS_SERVED if policies.strip() == "all" else policies.strip()
    if "," in name:
        raise NoServer(
            f"--policies {policies}: a server that runs already has one scheduler; name it with "
            "one word, or use --engine vllm"
        )
    known = VARIANTS.get(name)
    return Variant(
        name=name,
        policy=known.policy if known else Policy,
        offload=None,
        bound=False,
        description="as its user says" if name != AS_SERVED else "the scheduler that it runs",
        source="not checked",
    )


def says_vllm(model: dict[str, Any]) -> bool:
    return model.get("owned_by") == "vllm"


def models_of(url: str, asked_as: str) -> list[dict[str, Any]]:
    """What a server says that it serves. Raises NoServer, which begins with `asked_as`."""
    request = urllib.request.Request(  # noqa: S310
        f"{url}/v1/models", headers=authorization(api_key())
    )
    try:
        with urllib.request.urlopen(request, timeout=ANSWER_WITHIN_S) as answer:  # noqa: S310
            found = json.load(answer)["data"]
    except urllib.error.HTTPError as error:
        hint = f"; set {API_KEY}" if error.code == 401 else ""
        raise NoServer(f"{asked_as} {url}: /v1/models answered {error.code}{hint}") from None
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError) as error:
        why = getattr(error, "reason", error)
        raise NoServer(f"{asked_as} {url}: no OpenAI-compatible server answers ({why})") from None
    return [m for m in found if isinstance(m, dict)]
