"""Computes the metrics of a cell, as docs/reference/metrics.md defines them.

In: what a cell recorded, and its settings and result. Out: a row of `cells.csv`, and its jobs.
Units are seconds and tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from reports.loads import ladder_of
from reports.metrics.alone import machine_of
from reports.metrics.background import BACKGROUND
from reports.metrics.fairness import FAIRNESS
from reports.metrics.gates import VALIDITY, failed_gates
from reports.metrics.goodput import GOODPUT, latencies
from reports.metrics.interactivity import INTERACTIVITY
from reports.metrics.jct import JCT, WAITS, job_columns
from reports.metrics.lower_bound import BOUNDS
from reports.metrics.metric import Facts, Metric, Value
from reports.metrics.pins import PINS, read_pin_events
from reports.metrics.routing import ROUTING
from reports.metrics.saturation import TREND
from reports.metrics.stalls import NO_JOBS, stalled_jobs, without
from reports.metrics.steady import measured_turns, span_of
from reports.metrics.throughput import IN_FLIGHT, THROUGHPUT
from reports.metrics.tokens import HITS_OF_CELL, LATENCY, TOKENS_OF_JOBS
from reports.metrics.turn_time import TURN_TIME
from reports.metrics.waterfall import WATERFALL
from reports.run_folder.read import CellRun
from reports.run_folder.turns import Turns, finished, only, read_with_background
from servers.records.turns import EventRecord

GROUPS = (
    *(
        JCT,
        THROUGHPUT,
        IN_FLIGHT,
        LATENCY,
        TURN_TIME,
        HITS_OF_CELL,
        WAITS,
        PINS,
        FAIRNESS,
        ROUTING,
        TREND,
        VALIDITY,
    ),
    *(BACKGROUND, BOUNDS, GOODPUT, TOKENS_OF_JOBS, INTERACTIVITY),
)
"""In the order of the columns of `cells.csv`."""
Row = dict[str, Value | None]
"""The columns of `cells.csv`, or some of them."""
METRICS: Mapping[str, Metric] = {m.column: m for group in GROUPS for m in group.metrics}
JOB_COLUMNS = ("arrival_s", "jct_s", "bubble_s", *WATERFALL, "least_s", "slowdown")


class MeasuredCell(NamedTuple):
    row: Row
    """The columns of `cells.csv` that `settings_of` lacks."""
    turns: Turns
    """Turns of the measured jobs."""
    jobs: Turns

    @property
    def done(self) -> Turns:
        """The jobs without a failed turn, with the columns job_id and `JOB_COLUMNS`."""
        names = ("job_id", *JOB_COLUMNS)
        return only(~self.jobs["failed"], {name: self.jobs[name] for name in names})

    @property
    def latencies(self) -> Turns:
        """Of the turns without an error."""
        return latencies(self.turns, self.done)


class Recorded(NamedTuple):
    turns: Turns
    requests: Turns
    """Of the background."""
    pin_events: Callable[[], Sequence[EventRecord] | None]
    """Returns the events of pins; None for a cell without events."""


def read_recorded(cell: CellRun) -> Recorded:
    """Raises InvalidRunFolder, also if the turns were not kept."""
    return Recorded(*read_with_background(cell), partial(read_pin_events, cell))


def measure(
    recorded: Recorded, cell: CellRun, unstable: str | None, stalled: frozenset[str] = NO_JOBS
) -> MeasuredCell:
    """Return the numbers of a cell. An unstable cell has no jobs, because their JCT would depend on
    when the cell ended, and neither has one of a scenario, whose window cuts most jobs. Jobs
    delayed by a stall of the client, in this cell or (`stalled`) in another cell with the same
    jobs, have no JCT either. Raises InvalidRunFolder."""
    every_turn, requests, pin_events = recorded
    turns, machine = measured_turns(cell, every_turn), machine_of(cell)
    jobs = job_columns(turns, machine)
    if unstable is not None or cell.config.scenario is not None:
        jobs = {name: values[:0] for name, values in jobs.items()}
    own = stalled_jobs(cell, turns)
    left_out = own | stalled
    kept = without(left_out, jobs)
    facts = Facts(
        cell=cell,
        every=every_turn,
        turns=turns,
        jobs=jobs,
        kept=kept,
        done=only(~kept["failed"], kept),
        good=without(left_out, finished(turns)),
        span=span_of(cell, every_turn, jobs),
        requests=requests,
        lateness_ratio=_lateness(cell, without(own, jobs), without(own, turns)),
        left_out=len(left_out),
        unstable=unstable or "",
        machine=machine,
        pin_events=pin_events,
    )
    row: Row = {}
    for group in GROUPS:
        row |= group.of(facts)
        if group is BACKGROUND:  # `cells.csv` has the gates before the bounds
            row["failed_gates"] = "; ".join(failed_gates(facts, row))
    return MeasuredCell(row, turns, kept)


def load_label(amount: float | None, arrivals: str) -> str:
    """Return the label of a load: its rate, its number of agents, or else the arrival process."""
    return arrivals if amount is None else ladder_of(arrivals).label(amount)


def settings_of(cell: CellRun) -> Row:
    """Return the first columns of `cells.csv`."""
    config = cell.config
    return {
        "cell": cell.folder.name,
        "variant": config.variant,
        "reference": config.reference or "",
        "offload": bool(config.offload),
        "jps": config.jps,
        **({} if config.agents is None else {"agents": config.agents}),
        "load": load_label(config.amount, config.arrivals),
        "seed": config.seed,
        "hardware": config.hardware,
        "gpus": config.gpus,
        "model": config.model,
    }


def _lateness(cell: CellRun, jobs: Turns, turns: Turns) -> float:
    """Return the lateness of the client ÷ the JCTs, or ÷ the time of a scenario's requests."""
    if cell.config.scenario is None:
        done = only(~jobs["failed"], jobs)
        late_s, whole_s = done["late_s"], done["jct_s"]
    else:
        good = finished(turns)
        late_s = good["sent_at_s"] - good["scheduled_at_s"]
        whole_s = good["finished_at_s"] - good["scheduled_at_s"]
    return float(late_s.sum()) / whole if (whole := float(whole_s.sum())) > 0 else 0.0
