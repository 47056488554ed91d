"""Writes the fidelity card of run folders: `fidelity.html` and `fidelity.json`, or raises
NotComparable with the settings in which they differ.

In: run folders. Out: the files, and the card to print. The same folders give the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec import to_builtins

from reports.fidelity.card import Invalid, as_json, engine, headline, page
from reports.fidelity.distance import Fidelity, fidelity
from reports.fidelity.targets import TargetVerdict, judge
from reports.metrics.cells import Results, collect
from reports.run_folder.read import NOT_DONE, Run, load_run
from servers.basics.atomic import write_file
from servers.basics.errors import NotComparable
from servers.basics.phrasing import listed
from servers.records.sweep import SweepRecord


@dataclass(frozen=True, slots=True)
class Card:
    path: Path
    """The HTML file."""
    headline: str
    fidelity: Fidelity
    verdict: TargetVerdict
    caveats: list[str]
    invalid: list[Invalid]


def write_fidelity(
    live: Sequence[Path],
    virtual: Path,
    out: Path,
    *,
    notes: Sequence[str] = (),
) -> Card:
    """`live` are repeats of one sweep. `notes` are further caveats, about the profile.

    Raises NotComparable and InvalidRunFolder.
    """
    runs, simulated = [load_run(folder) for folder in live], load_run(virtual)
    check_comparable(runs, simulated)
    results, own = [collect(run) for run in runs], collect(simulated)
    pairs = [*zip(runs, results, strict=True), (simulated, own)]
    for run, result in pairs:
        if result.cells.empty:
            raise NotComparable(
                f"{run.folder}: no cell has finished; run the sweep to its end first"
            )
    found = fidelity([result.cells for result in results], own.cells)
    invalid = [row for run, result in pairs for row in _invalid(run, result)]
    verdict = judge(found, len({cell for _, cell, _ in invalid}))
    all_caveats = [*caveats(runs, simulated), *notes]
    about = {"engine": engine(runs[0]), "live": _about(runs[0]), "virtual": _about(simulated)}
    out.mkdir(parents=True, exist_ok=True)
    html = page(runs, simulated, found, verdict, all_caveats, invalid)
    write_file(out / "fidelity.html", html.encode())
    write_file(out / "fidelity.json", as_json(found, verdict, about, all_caveats, invalid))
    return Card(
        out / "fidelity.html", headline(verdict, runs[0]), found, verdict, all_caveats, invalid
    )


def _invalid(run: Run, result: Results) -> list[Invalid]:
    name = run.folder.resolve().name
    return [(name, cell, why) for cell, why in (*result.failed_gates.items(), *result.missing)]


def _about(run: Run) -> dict[str, Any]:
    fields = (
        *("engine", "hardware", "model", "server", "limits", "profile", "workload"),
        *("arrivals", "seeds", "code_sha256"),
    )
    return {
        "folder": run.folder.resolve().name,
        **{field: value for field, value in to_builtins(run.sweep).items() if field in fields},
    }


MAX_NAMED = 4


def check_comparable(live: Sequence[Run], virtual: Run) -> None:
    """Raise NotComparable if the runs differ in a setting that affects the results."""
    folders = [run.folder.resolve() for run in (*live, virtual)]
    for index, folder in enumerate(folders):
        if folder in folders[:index]:
            raise NotComparable(f"{(*live, virtual)[index].folder}: is given twice")
    if virtual.sweep.virtual_time is None:
        raise NotComparable(
            f"--sim {virtual.folder}: ran on {virtual.sweep.engine}, not in virtual time"
        )
    for run in live:
        if run.sweep.virtual_time is not None:
            raise NotComparable(f"--live {run.folder}: ran in virtual time, not on a live engine")
        _refuse(run, virtual, [*_differences(run.sweep, virtual.sweep), *_memory(run, virtual)])
        _refuse(run, live[0], _other_engine(run.sweep, live[0].sweep))


def _refuse(one: Run, other: Run, differences: Iterable[str]) -> None:
    if found := list(differences):
        raise NotComparable(
            f"{one.folder} and {other.folder} have different settings: {'; '.join(found)}"
        )


def _differences(one: SweepRecord, other: SweepRecord) -> Iterable[str]:
    """Yield a phrase per difference. The order of rates, seeds and policies does not matter."""
    yield from _differing("rates", set(one.jps), set(other.jps))
    yield from _differing("seeds", set(one.seeds), set(other.seeds))
    policies = [{variant.name for variant in sweep.variants} for sweep in (one, other)]
    yield from _differing("policies", *policies)
    for field in ("arrivals", "background"):
        yield from _differing(field, getattr(one, field), getattr(other, field))
    for what, field in (
        ("traces", "trace_sha256"),
        ("programs", "programs"),
        ("turns", "turns"),
    ):
        yield from _differing(
            what, *(_short(getattr(sweep.workload, field)) for sweep in (one, other))
        )
    limits = [to_builtins(sweep.limits) for sweep in (one, other)]
    for field in sorted(limits[0].keys() & limits[1].keys()):
        yield from _differing(field, limits[0][field], limits[1][field])


def _differing(what: str, one: Any, other: Any) -> Iterable[str]:
    if one != other:
        yield f"{what} {_text(one)} instead of {_text(other)}"


def _text(value: Any) -> str:
    if not isinstance(value, set):
        return str(value)
    numbers = sorted(value, key=lambda v: (isinstance(v, str), v if v is not None else 0))
    return listed([str(v) for v in numbers], at_most=MAX_NAMED)


def _short(value: Any) -> Any:
    return value[:12] if isinstance(value, str) else value


def _memory(live: Run, virtual: Run) -> Iterable[str]:
    """Compare the KV memory. vLLM reserves one of its blocks as the null block."""
    profile = virtual.sweep.profile
    done = live.cells[0].done if live.cells else NOT_DONE
    in_profile, in_live = profile.kv_blocks, done.kv_blocks
    if in_profile is not None and in_live is not None and in_live - in_profile not in (0, 1):
        yield f"KV blocks {in_live} instead of {in_profile}"
    in_profile, in_live = profile.block_tokens, done.block_tokens
    if None not in (in_profile, in_live):
        yield from _differing("tokens of a KV block", in_live, in_profile)


def _other_engine(one: SweepRecord, other: SweepRecord) -> Iterable[str]:
    """Compare live repeats, which must be of one engine on one machine."""
    for field in ("engine", "hardware", "model", "server"):
        yield from _differing(field, getattr(one, field), getattr(other, field))


def caveats(live: Sequence[Run], virtual: Run) -> list[str]:
    """Return differences that do not prevent the comparison but may explain its result."""
    found: list[str] = []
    profile = virtual.sweep.profile
    kind = profile.provenance
    if kind != "measured":
        found.append(
            f"Virtual time used an {kind or 'analytic'} profile, which was not measured on this"
            " engine."
        )
    models = [run.sweep.model for run in (live[0], virtual)]
    if models[0] != models[1]:
        found.append(f"The live model is {models[0]}, the model of the profile is {models[1]}.")
    versions = {run.sweep.turnstile_version for run in (*live, virtual)}
    if len(versions) > 1 or len({run.sweep.code_sha256 for run in live}) > 1:
        found.append("The runs were made with different versions of Turnstile's code.")
    done = live[0].cells[0].done if live[0].cells else NOT_DONE
    if profile.kv_blocks is not None and done.kv_blocks == profile.kv_blocks:
        found.append(
            "Virtual time had one more usable KV block than the live engine, which reserves a null"
            " block."
        )
    if len(live) == 1:
        found.append(
            "Each live cell ran once, so the spread of the live engine is unknown. Use --repeats 2."
        )
    if len(virtual.sweep.seeds) == 1:
        found.append("There is one seed, so errors do not average out over draws of the arrivals.")
    return found
