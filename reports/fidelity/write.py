"""Writes the fidelity card of run folders: `fidelity.html` and `fidelity.json`.

In: run folders. Out: the files, and the card to print. The same folders give the same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec import to_builtins

from reports.fidelity.card import Invalid, as_json, engine, headline, page
from reports.fidelity.comparable import caveats, check_comparable
from reports.fidelity.distance import Fidelity, fidelity
from reports.fidelity.targets import TargetVerdict, judge
from reports.metrics.cells import Results, collect
from reports.run_folder.read import Run, load_run
from servers.basics.atomic import write_file
from servers.basics.errors import NotComparable


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
