"""Print profiles on stdout: measured times, or step times at a few points."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from harness.cli.tables import show_rows
from harness.console import print_message
from servers.profiles import Profile
from servers.profiles.measured import Errors, Measured, prompt_name
from servers.profiles.reference_steps import ReferenceStep


def print_profile(
    profile: Profile,
    gpus: int | None,
    points: Sequence[ReferenceStep],
    kv_tokens: int,
    provenance: str,
    fit_errors: Mapping[str, Errors],
) -> None:
    """Print step times, KV memory, provenance and errors of the fit. `gpus` is None if the file of
    the profile does not have it."""
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
    show_rows(rows, "step times")
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
