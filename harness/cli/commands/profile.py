"""`bench profile`: measure a live engine and write a profile for virtual time and policies.

The summary goes to stdout, progress to stderr.
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli.errors import one_line_errors
from harness.cli.options import Only, takes_settings
from harness.console import print_message
from harness.load.settings import Machine, Server
from harness.redact import server_url
from servers.errors import InvalidInput

if TYPE_CHECKING:
    from servers.profiles.measured import Measured
    from servers.vllm.launch.command_line import ServerConfig
    from servers.vllm.launch.server import ServerInfo, VllmServer

app = typer.Typer(rich_markup_mode="rich", add_completion=False)

HELP = """Measure how fast vLLM is on this machine: prefills, decode steps, KV memory.

Starts a server without a policy and stops it; its log stays in runs/profile/. Other commands read
the profile as --hardware FILE. The machine should be idle. Arguments after -- are passed to vLLM
unchanged.

[bold]Examples[/bold]

  bench profile

  bench profile --model llama-3.1-8b --out h200.json

  bench profile --tier lmcache

  bench profile --url http://127.0.0.1:8000 --within-s 300
"""


@app.command(help=HELP)
@takes_settings()
def profile(
    *,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            metavar="NAME|PATH",
            help="As for bench serve. Required with --url if the served name is none of these. "
            "Default: tiny.",
        ),
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(
            "--url", metavar="URL", help="Measure this idle vLLM server instead of starting one."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", dir_okay=False, help="Default: MODEL-profile.json."),
    ] = None,
    within_s: Annotated[
        float, typer.Option("--within-s", min=10, max=540, help="Time limit for measuring.")
    ] = 120.0,
    tier: Annotated[
        str | None,
        typer.Option(
            "--tier", metavar="KIND", help="Also measure reloads: lmcache or native (vLLM's own)."
        ),
    ] = None,
    machine: Annotated[
        Machine,
        Only("offload_gb", "gpus", "kv_blocks", "max_model_len", "max_num_seqs", "step_tokens"),
    ],
    server: Annotated[Server, Only("vllm_flags", "weights", "vllm_python", "ready_within_s")],
) -> None:
    measure_profile(replace(machine, model=model), server, out, within_s, url, tier)


def measure_profile(
    machine: Machine,
    server: Server,
    out: Path | None,
    within_s: float,
    url: str | None = None,
    tier: str | None = None,
) -> None:
    """Write the profile and print a summary. Exit with code 1 if the measurement fails."""
    from harness.load.server_config import server_config
    from reports.run_folder.atomic import refuse_unwritable, write_file
    from servers.errors import MeasurementFailed

    with one_line_errors():
        refuse_unwritable(out or Path("profile.json"))
        config = server_config(machine, server, machine.model or "tiny")
        if tier is not None:
            config = _with_tier(config, tier, machine.offload_gb, url, server.vllm_python)
        try:
            if url is not None:
                measured = _measure_url(url, machine.model, config, within_s)
            else:
                measured = _measure_new_server(config, server, within_s)
        except MeasurementFailed as error:
            print_message(str(error))
            raise typer.Exit(1) from None
        path = out or Path(f"{measured.model}-profile.json")
        write_file(path, f"{measured.model_dump_json(indent=1)}\n".encode())
    _show(measured, path)


def _with_tier(
    config: ServerConfig, tier: str, offload_gb: float | None, url: str | None, python: str | None
) -> ServerConfig:
    from typing import get_args

    from harness.calibrate.reload_times import DEV_MODE
    from servers.variants import Tier
    from servers.vllm.launch.command_line import dram_gb
    from servers.vllm.launch.find_vllm import find_vllm
    from servers.vllm.launch.offload_tier import Offloading

    kind = next((kind for kind in get_args(Tier) if kind == tier), None)
    if kind is None:
        raise InvalidInput(f"--tier {tier}: use lmcache or native")
    if url is not None:
        raise InvalidInput(f"--tier {tier}: not supported with --url; remove one of them")
    offload = Offloading(kind, dram_gb(offload_gb, find_vllm(python), config.gpus))
    return replace(config, offload=offload, env=DEV_MODE)


def _measure_new_server(config: ServerConfig, settings: Server, within_s: float) -> Measured:
    from harness.cli.start_server import fresh_folder, running_servers
    from servers.vllm.models.kv_bytes import kv_bytes_per_token

    kv_bytes = kv_bytes_per_token(config.model, config.weights)
    with running_servers(config, fresh_folder("profile"), settings) as ([server], _):
        return _measure(server.base_url, server.info, config, kv_bytes, within_s, server)


def _measure_url(url: str, model: str | None, config: ServerConfig, within_s: float) -> Measured:
    from harness.engines.vllm_at_url import describe
    from servers.vllm.models.kv_bytes import kv_bytes_per_token

    info = describe(base_url := server_url(url, "--url"))
    kv_bytes = kv_bytes_per_token(model or info.model, config.weights)
    return _measure(base_url, info, config, kv_bytes, within_s)


def _measure(
    base_url: str,
    info: ServerInfo,
    config: ServerConfig,
    kv_bytes: int,
    within_s: float,
    server: VllmServer | None = None,
) -> Measured:
    from harness.calibrate.probe import Target
    from harness.calibrate.reload_times import measure_reload
    from harness.calibrate.step_times import measure
    from harness.cli.start_server import StatusLine
    from servers.profiles.measured import Measured, fitted

    target = Target(
        base_url=base_url,
        model=info.model,
        vocabulary=range(*info.vocabulary),
        max_model_len=info.max_model_len,
        kv_tokens=(info.kv_blocks - 1) * info.block_size,  # vLLM reserves one block
        step_tokens=config.step_tokens,
        max_num_seqs=config.max_num_seqs,
    )
    with StatusLine() as status:
        times = measure(
            target,
            within_s,
            lambda share, stage: status.show(f"{share:.0%} of {within_s:g} s: {stage}"),
        )
    reload = None
    if server is not None and config.offload is not None:
        print("measuring reloads from the tier", file=sys.stderr, flush=True)
        reload = measure_reload(server, target)
    prefill, decode = tuple(times.prefill), tuple(times.decode)
    return Measured.model_validate(
        {
            "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "made_by": f"turnstile-bench {metadata.version('turnstile-bench')}",
            "machine": info.device,
            "engine": f"vLLM {info.version}",
            "flags": info.flags,
            "model": info.model,
            "gpus": config.gpus,
            "kv_blocks": info.kv_blocks,
            "block_tokens": info.block_size,
            "max_model_len": info.max_model_len,
            "kv_bytes_per_token": kv_bytes,
            "step_tokens": config.step_tokens,
            "prefill": prefill,
            "decode": decode,
            "reload": reload,
            "left_out": tuple(times.left_out),
            **fitted(prefill, decode, config.step_tokens),
        }
    )


def _show(measured: Measured, path: Path) -> None:
    from statistics import median

    from harness.cli.tables import show_rows
    from servers.profiles.measured import prompt_name

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
    print(f"profile: {path}")
