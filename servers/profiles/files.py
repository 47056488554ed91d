"""Resolves --hardware, which names a machine or a file of `bench profile`, to a profile.

A machine has the step times of operator tables where they cover the model, else analytic ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from pydantic import ValidationError

from servers.admission import MAX_NUM_SEQS, STEP_TOKENS
from servers.basics.errors import DoesNotFit, InvalidInput
from servers.profiles.cpu_time import CPU_TIME, CpuTime, Scheduling, StepTimes, with_cpu_time
from servers.profiles.from_tables import FromTables
from servers.profiles.kv_budget import gpus_for
from servers.profiles.kv_cache_dtype import KvCacheDtype, with_kv_cache
from servers.profiles.kv_memory import FULL_ATTENTION
from servers.profiles.layout import Layout
from servers.profiles.machines.gpu_file import gpu_of_file
from servers.profiles.machines.gpu_file import hardware as find_hardware
from servers.profiles.measured import Measured
from servers.profiles.models.files import model_name
from servers.profiles.models.listed import MODELS, same_shape
from servers.profiles.models.listed import model as find_model
from servers.profiles.profile import Profile
from servers.profiles.roofline import analytic_profile, notes
from servers.profiles.shipped import (
    ShippedSteps,
    shipped_file,
    shipped_notes,
    shipped_steps,
    with_steps,
)

TABLES_OF_16_BITS = (
    "KV memory and reloads assume KV in FP8 (--kv-cache-dtype fp8), but step times come from"
    " operator tables with KV in 16 bits"
)
TABLES_OF_FILES = (
    " that come with Turnstile; bench profile --from aiconfigurator --model … makes step times "
    "from operator tables, if they have its operators"
)
RANKS = (
    "each of {0} GPUs is a rank with a scheduler and KV of its own; all compute each step together,"
    " until the slowest has ended, with the experts of each layer spread evenly over them"
)
STAGES = (
    "each of {0} GPUs has a stage of the layers and their KV; up to {0} batches are computed at a "
    "time, each stage takes as long as the slowest, and sends its activations over the link to the "
    "next GPU (inferred: published bandwidth, 10 µs)"
)
ANALYTIC_FP8 = (
    "KV is in FP8 (--kv-cache-dtype fp8): a decode reads a byte per entry, and the products of "
    "attention stay in 16 bits"
)


def read_measured(path: Path) -> Measured:
    try:
        data = path.read_bytes()
        kind = FromTables if b'"turnstile-tables-1"' in data else Measured
        return kind.model_validate_json(data)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        raise InvalidInput(
            f"{path}: {field + ': ' if field else ''}{first['msg']}; give a file of bench profile"
        ) from None
    except OSError as error:
        raise InvalidInput(
            f"{path}: {error.strerror}; name a machine (bench list hardware), or a file that "
            "bench profile wrote"
        ) from None


def is_file(hardware: str) -> bool:
    """Return whether the value of --hardware is a path instead of the name of a machine."""
    return hardware.lower().endswith(".json")


def measured_for(
    hardware: str,
    model: str | None,
    gpus: int | None,
    kv_cache_dtype: KvCacheDtype = KvCacheDtype.AUTO,
    step_times: StepTimes = StepTimes.TABLES,
) -> Measured:
    """Read a file. Raises InvalidInput if it was measured with another model, other GPUs, or
    another format of the KV cache (`auto` means the file's format), and for analytic step times."""
    if step_times != StepTimes.TABLES:
        raise InvalidInput(
            f"--step-times {step_times}: {hardware} is a file of bench profile, which has its own "
            "step times; name a machine, or leave out --step-times"
        )
    measured = read_measured(Path(hardware))
    if model is not None and measured.model not in (model, Path(model).name, model_name(model)):
        raise InvalidInput(
            f"--model {model}: {hardware} was measured with {measured.model}; give that model"
        )
    if gpus not in (None, measured.gpus):
        raise InvalidInput(
            f"--gpus {gpus}: {hardware} was measured with {measured.gpus or 'the default number'}"
        )
    if kv_cache_dtype not in (KvCacheDtype.AUTO, measured.kv_cache_dtype):
        raise InvalidInput(
            f"--kv-cache-dtype {kv_cache_dtype}: {hardware} was made with "
            f"{measured.kv_cache_dtype}; leave it out, or measure with it (bench profile)"
        )
    return measured


def profile_for(
    hardware: str,
    model: str | None,
    *,
    gpus: int | None = None,
    max_model_len: int | None = None,
    kv_blocks: int | None = None,
    offload: bool = False,
    scheduling: Scheduling = Scheduling.ASYNC,
    kv_cache_dtype: KvCacheDtype = KvCacheDtype.AUTO,
    step_times: StepTimes = StepTimes.TABLES,
    layout: Layout = Layout.TP,
    max_num_seqs: int = MAX_NUM_SEQS,
    step_tokens: int = STEP_TOKENS,
) -> Profile:
    """Return the profile of a machine or a file, named by `hardware`. `offload` adds the CPU time
    of an offload tier, unless it was measured. Raises InvalidInput or DoesNotFit."""
    if not is_file(hardware):
        if model is None:
            raise InvalidInput(f"--hardware {hardware}: the profile of a machine needs a --model")
        analytic = analytic_profile(
            hardware,
            model,
            gpus=gpus,
            max_model_len=max_model_len,
            kv_blocks=kv_blocks,
            offload=offload,
            scheduling=scheduling,
            kv_cache_dtype=kv_cache_dtype,
            layout=layout,
            max_num_seqs=max_num_seqs,
            step_tokens=step_tokens,
        )
        steps = _shipped(hardware, model, gpus, step_times, kv_cache_dtype)
        if steps is None or layout != Layout.TP:
            return analytic
        cpu, ahead = CPU_TIME[scheduling], scheduling.ahead
        return with_cpu_time(with_steps(analytic, steps), cpu, ahead=ahead, offload=offload)
    measured = measured_for(hardware, model, gpus, kv_cache_dtype, step_times)
    return profile_of_file(
        measured,
        max_model_len=max_model_len,
        kv_blocks=kv_blocks,
        offload=offload,
        scheduling=scheduling,
    )


def profile_of_file(
    measured: Measured,
    *,
    max_model_len: int | None = None,
    kv_blocks: int | None = None,
    offload: bool = False,
    scheduling: Scheduling = Scheduling.ASYNC,
) -> Profile:
    """Return the profile of a file of `bench profile`, as `profile_for` does."""
    is_measured = measured.provenance == "measured"
    profile = with_cpu_time(
        measured.profile(),
        measured.cpu_time(scheduling),
        ahead=measured.schedules_ahead if is_measured else scheduling.ahead,
        offload=offload,
    )
    if offload and not profile.keeps_states:  # Then every layer keeps all tokens.
        blocks = profile.kv_blocks // len(profile.kv_groups)
        profile = replace(profile, kv_groups=FULL_ATTENTION, kv_blocks=blocks)
    if kv_blocks is not None:
        profile = replace(profile, kv_blocks=kv_blocks)
    capacity = profile.longest_turn(STEP_TOKENS)
    if max_model_len is not None and max_model_len > capacity:
        raise DoesNotFit(
            f"--max-model-len {max_model_len}: {profile.kv_blocks} KV blocks of "
            f"{profile.block_tokens} tokens hold one request of {capacity}; give at most that, or "
            "more --kv-blocks"
        )
    if max_model_len is None:
        max_model_len = min(profile.max_model_len, capacity)
    return replace(profile, max_model_len=max_model_len)


def notes_for(
    hardware: str,
    model: str | None,
    profile: Profile,
    *,
    gpus: int | None = None,
    step_times: StepTimes = StepTimes.TABLES,
    scheduling: Scheduling = Scheduling.ASYNC,
    kv_cache_dtype: KvCacheDtype = KvCacheDtype.AUTO,
    layout: Layout = Layout.TP,
) -> tuple[str, ...]:
    """Return the origin and the caveats of a profile of `profile_for`, in one sentence each."""
    if is_file(hardware) or model is None:
        return notes_of_file(read_measured(Path(hardware)), profile, scheduling)
    llm = with_kv_cache(find_model(model), kv_cache_dtype, find_hardware(hardware))
    n = gpus_for(hardware, model, gpus, kv_cache_dtype)
    if layout != Layout.TP:
        first, *others = notes(profile, gpu_of_file(hardware), llm, 1)
        return (first, (RANKS if layout == Layout.DP_ATTN else STAGES).format(n), *others)
    caveats = notes(profile, gpu_of_file(hardware), llm, n)
    if profile.provenance == "operator-table":
        listed = tables_of(hardware, model) or model
        first, *others = shipped_notes(hardware, listed, n)
        if listed != llm.name:
            others.insert(
                0,
                f"{llm.name} has the shape of {listed}, whose operator tables give its step times",
            )
        kv = [TABLES_OF_16_BITS] if kv_cache_dtype == KvCacheDtype.FP8 else []
        return (first, _cpu_time(CPU_TIME[scheduling], scheduling), *kv, *others, *caveats)
    if kv_cache_dtype == KvCacheDtype.FP8:
        caveats = (caveats[0], ANALYTIC_FP8, *caveats[1:])
    if step_times == StepTimes.TABLES:
        missing = f"no operator tables cover {llm.name} on {n} x {profile.hardware}"
        if (
            model not in MODELS
            and llm.states is None
            and llm.indexer is None
            and shipped_file(hardware)
        ):
            missing += TABLES_OF_FILES
        return (caveats[0], missing, *caveats[1:])
    return caveats


def notes_of_file(
    measured: Measured, profile: Profile, scheduling: Scheduling = Scheduling.ASYNC
) -> tuple[str, ...]:
    """Return the same as `notes_for`, for a file of `bench profile` and its profile."""
    first, *others = measured.all_notes()
    added = _cpu_time(measured.cpu_time(scheduling), scheduling)
    return (first, *([added] if profile.provenance == "operator-table" else []), *others)


def _cpu_time(cpu: CpuTime, scheduling: Scheduling) -> str:
    step_ms, turn_us = cpu.step_ps / 1e9, cpu.sequence_ps / 1e6
    request_ms, token_us = cpu.request_ps / 1e9, cpu.request_token_ps / 1e6
    return (
        f"{step_ms:g} ms of CPU time per step, and {turn_us:g} µs per turn, are added "
        f"({scheduling} scheduling), and {request_ms:g} ms and {token_us:g} µs per token to each "
        "prompt, in the API server"
    )


def tables_of(hardware: str, model: str) -> str | None:
    """Return the listed model whose operator tables on this GPU apply to the model: itself, or one
    of the same shape; None if there is none."""
    file = shipped_file(hardware)
    covered = file.models if file else {}
    return next((name for name in same_shape(model) if name in covered), None) if covered else None


def _shipped(
    hardware: str,
    model: str,
    gpus: int | None,
    step_times: StepTimes,
    kv_cache_dtype: KvCacheDtype,
) -> ShippedSteps | None:
    """A GPU described by a file has no shipped step times. A model without its own uses those of a
    listed model with the same shape."""
    listed = tables_of(hardware, model) if step_times == StepTimes.TABLES else None
    if listed is None:
        return None
    return shipped_steps(hardware, listed, gpus_for(hardware, model, gpus, kv_cache_dtype))
