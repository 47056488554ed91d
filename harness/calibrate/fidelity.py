"""What `bench fidelity` runs: the same cells in virtual time and, repeatedly, live.

In: options and a folder. Out: the questions of its sweeps (`OUT/sim`, `OUT/live-1`, …), which
`harness.cli.answer.answer` runs and resumes like any other, and the profile that both go by
(`OUT/profile.json`).
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict, replace
from pathlib import Path

import orjson

from harness.cells.names import slug
from harness.load.settings import Asked, AskedServer
from harness.sweep.plan import Question, resolve
from reports.run_folder.atomic import make_folder, write_file
from servers.errors import InvalidInput
from servers.profiles.measured import is_file, read_measured
from servers.variants import variants

PROFILE = "profile.json"
OURS = (PROFILE, "sim", "live-1", "fidelity.html", "fidelity.json")
"""By one of these a folder is known as one of `bench fidelity`."""


def check(asked: Asked) -> None:
    """All of the question but the machine, which may not be measured yet. Raises a ValueError."""
    for variant in variants(asked.policies):
        if variant.offload is not None:
            raise InvalidInput(
                f"--policies {variant.name}: a fidelity card has no policies over an offload tier; "
                "leave it out"
            )
    if asked.hardware is not None and not is_file(asked.hardware):
        raise InvalidInput(
            f"--hardware {asked.hardware}: is no measured profile; give a file of bench profile, "
            "or leave it out to have one measured"
        )
    anywhere = Asked(
        jps=asked.jps,
        policies=asked.policies,
        traces=asked.traces,
        programs=asked.programs,
        seeds=asked.seeds,
        arrivals=asked.arrivals,
        max_num_seqs=asked.max_num_seqs,
        step_tokens=asked.step_tokens,
    )
    resolve(anywhere)


def default_folder(asked: Asked) -> Path:
    """Readable, and the same for the same question only; where vLLM lies is not part of it."""
    question = asdict(replace(asked, server=replace(asked.server, vllm_python=None)))
    digest = hashlib.sha256(orjson.dumps(question, default=str)).hexdigest()[:8]
    load = "+".join(Path(source).name for source in asked.traces)
    parts = ["fidelity", load, Path(asked.model or "").name, digest]
    return Path("runs") / "_".join(slug(part) for part in parts if part)


def claim(out: Path, given: str | None) -> Path:
    """The folder is there and ours; in it, the profile as given, if one was. Its path."""
    if out.exists() and not out.is_dir():
        raise InvalidInput(f"--out {out}: is a file; name a folder")
    if out.exists() and any(out.iterdir()) and not any((out / name).exists() for name in OURS):
        raise InvalidInput(f"--out {out}: holds files, but no fidelity card; name an empty folder")
    kept = out / PROFILE
    if given is not None:
        read_measured(Path(given))
        content = Path(given).read_bytes()
        if kept.exists() and kept.read_bytes() != content:
            raise InvalidInput(
                f"--out {out}: was begun with another profile than {given}; name another folder"
            )
    make_folder(out)
    if given is not None and not kept.exists():
        write_file(kept, content)
    return kept


def live_and_virtual(asked: Asked, profile: Path) -> tuple[Asked, Asked]:
    """The question of each live sweep, and of the one in virtual time.

    Both get the same memory: of vLLM's N blocks one is its null block, which no turn gets, so
    virtual time has N − 1. Both take the same longest context, so that none leaves out a program
    that the other runs.
    """
    measured = read_measured(profile)
    blocks = asked.kv_blocks or measured.kv_blocks
    live = replace(
        asked,
        engine="vllm",
        hardware=str(profile),
        model=asked.model or measured.model,
        kv_blocks=blocks,
    )
    question = resolve(live)
    longest, _ = question.engine.longest
    virtual = replace(
        live, engine="sim", kv_blocks=blocks - 1, max_model_len=longest, server=AskedServer()
    )
    _check_same(question, resolve(virtual))
    return live, virtual


def _check_same(live: Question, virtual: Question) -> None:
    for what in ("programs", "turns"):
        one, other = (q.workload.as_json()[what] for q in (live, virtual))
        if one != other:
            raise InvalidInput(
                f"live {one} {what} fit, in virtual time {other}; give --max-model-len, so that "
                "both leave out the same programs"
            )


def arriving_s(asked: Asked, repeats: int) -> float:
    """For how long jobs arrive in all live cells together, which cannot take less; 0 in a closed
    loop, where nothing but the engine sets it."""
    question = resolve(asked)
    programs = question.workload.programs
    draws = [question.arrivals.draw(programs, cell.jps, cell.seed) for cell in question.cells()]
    return repeats * sum(max(starts_s) for starts_s, in_flight in draws if in_flight is None)
