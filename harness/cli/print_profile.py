"""Print profiles on stdout: measured times, or step times and memory, as tables or JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

import orjson

from harness.cli.tables import show_rows
from harness.console import print_message
from harness.engines.sim import DEFAULT_MODEL, resolve_profile
from harness.load.machines import refuse_list
from harness.load.settings import Machine
from servers.basics.errors import InvalidInput
from servers.profiles import Profile
from servers.profiles.end_to_end import end_to_end_error
from servers.profiles.files import tables_of
from servers.profiles.measured import Errors, Measured, prompt_name
from servers.profiles.reference_steps import ReferenceStep, beside_tables, reference_steps
from servers.profiles.shipped import shipped_steps


def print_profile(
    profile: Profile,
    gpus: int | None,
    points: Sequence[ReferenceStep],
    kv_tokens: int,
    provenance: str,
    fit_errors: Mapping[str, Errors],
    stages: int = 1,
) -> None:
    """Print step times, KV memory, provenance and errors of the fit. `gpus` is None if the file of
    the profile does not have it. Of a pipeline, the profile is that of one of its stages."""
    machine = f"{gpus} x {profile.hardware}" if gpus else profile.hardware
    print(f"{profile.model} on {machine}, {profile.provenance} profile")
    rows = [
        (
            point.kind,
            f"{point}{'' if point.fits else ' (does not fit)'}",
            _ms(point.ms),
            *_tables(point),
        )
        for point in points
    ]
    show_rows(rows, "step times" if stages == 1 else f"step times of one of {stages} stages")
    known = [
        ("KV memory", f"{kv_tokens:,} tokens"),
        ("longest context", f"{profile.max_model_len:,} tokens"),
        ("provenance", provenance),
    ]
    for what, errors in fit_errors.items():
        text = f"{errors.median:.1%} median, {errors.worst:.1%} worst ({errors.worst_at})"
        known.append((f"fit error, {what}", text))
    show_rows(known, "profile")


def _tables(point: ReferenceStep) -> list[str]:
    if point.tables_ms is None:
        return []
    tables = f"tables {_ms(point.tables_ms)}"
    if point.one_step_ms is None:
        return [tables]
    return [f"in one step {_ms(point.one_step_ms)}, {tables}"]


def _ms(ms: float) -> str:
    return f"{ms:,.0f} ms" if ms >= 100 else f"{ms:.3g} ms"


def print_measured(measured: Measured) -> None:
    """Print the times, the fit and the caveats of a profile that was measured here."""

    def times(seconds: tuple[float, ...]) -> tuple[str, str]:
        middle = median(seconds)
        spread = f"{min(seconds) / middle - 1:+.0%} {max(seconds) / middle - 1:+.0%}"
        return f"{1000 * middle:.3g} ms", spread

    print(f"{measured.engine}, {measured.model}, on {measured.machine}")
    show_rows(
        [(prompt_name(p.tokens, p.cached_tokens), *times(p.seconds)) for p in measured.prefill],
        "prefill",
    )
    show_rows(
        [(f"{d.batch} at {d.context:.0f} tokens", *times(d.seconds)) for d in measured.decode],
        "decode step of a batch",
    )
    if measured.reload is not None:
        share = f"{measured.reload.from_tier_tokens} of {measured.reload.tokens} tokens"
        show_rows([(share, *times(measured.reload.seconds))], "reload from the tier")
    steps, curve = measured.steps, measured.curve
    rows = [
        (name.removesuffix("_ps"), f"{1e-6 * ps:,.3f} us")
        for name, ps in steps.model_dump().items()
    ]
    fits = (
        ("step formula, prefills", measured.prefill_errors),
        ("step formula, decodes", measured.decode_errors),
        ("quadratic, prefills", measured.curve_errors),
    )
    rows += [
        ("prefill", f"{curve.base_s:.3g} s + {curve.linear_s:.3g} n + {curve.quadratic_s:.3g} n2"),
        *(
            (name, f"error {e.median:.0%} median, {e.worst:.0%} worst ({e.worst_at})")
            for name, e in fits
        ),
    ]
    show_rows(rows, "fit")
    for note in (*measured.left_out, *measured.notes()[1:]):
        print_message(note)


def show_profile(machine: Machine, as_json: bool) -> None:
    """Raises InvalidInput."""
    refuse_list(machine)
    limits = ("--step-tokens", machine.step_tokens), ("--max-num-seqs", machine.max_num_seqs)
    for option, value in limits:
        if value < 1:
            raise InvalidInput(f"{option} {value}: must be at least 1")
    found = resolve_profile(machine)
    profile, file = found.profile(), found.file
    remarks = file.notes() if file else found.notes
    steps = measured = None
    if profile.provenance == "operator-table" and found.gpus and not file:
        model = machine.model or DEFAULT_MODEL
        listed = tables_of(profile.hardware, model) or model
        steps = shipped_steps(profile.hardware, listed, found.gpus)
        measured = end_to_end_error(profile.hardware, listed, found.gpus)
    errors = file.errors if file else steps.errors if steps else {}
    stages = found.stages.count if found.stages else 1
    points = reference_steps(profile, machine.step_tokens)
    if steps:
        points = beside_tables(points, profile, steps.reference_ms)
    kv_tokens = profile.kv_tokens(machine.step_tokens, profile.max_model_len)
    if as_json:
        document = {
            "hardware": profile.hardware,
            "model": profile.model,
            "gpus": found.gpus,
            "stages": stages,
            "steps": [point.json() for point in points],
            "kv_tokens": kv_tokens,
            "max_model_len": profile.max_model_len,
            "provenance": f"{profile.provenance}: {remarks[0]}",
            "notes": list(remarks[1:]),
            "fit_errors": {what: each.model_dump() for what, each in errors.items()},
            "end_to_end": measured.model_dump() if measured else None,
        }
        print(orjson.dumps(document, option=orjson.OPT_INDENT_2).decode())
        return
    print_profile(profile, found.gpus, points, kv_tokens, remarks[0], errors, stages)
    for remark in remarks[1:]:
        print_message(remark)
