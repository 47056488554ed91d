"""Reads files of `bench profile`, and resolves --hardware, which names a machine or such a file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from pydantic import ValidationError

from servers.errors import DoesNotFit, InvalidProfile
from servers.profiles.cpu_time import Scheduling, with_cpu_time
from servers.profiles.from_tables import FromTables
from servers.profiles.measured import Measured
from servers.profiles.model_files import model_name
from servers.profiles.profile import Profile
from servers.profiles.roofline import analytic_profile


def read_measured(path: Path) -> Measured:
    try:
        data = path.read_bytes()
        kind = FromTables if b'"turnstile-tables-1"' in data else Measured
        return kind.model_validate_json(data)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        raise InvalidProfile(
            f"{path}: {field + ': ' if field else ''}{first['msg']}; give a file of bench profile"
        ) from None
    except OSError as error:
        raise InvalidProfile(
            f"{path}: {error.strerror}; name a machine (bench list hardware), or a file that "
            "bench profile wrote"
        ) from None


def is_file(hardware: str) -> bool:
    """Return whether the value of --hardware is a path and not the name of a machine."""
    return hardware.lower().endswith(".json")


def measured_for(hardware: str, model: str | None, gpus: int | None) -> Measured:
    """Read a file. Raises InvalidProfile if it was measured with another model or other GPUs."""
    measured = read_measured(Path(hardware))
    if model is not None and measured.model not in (model, Path(model).name, model_name(model)):
        raise InvalidProfile(
            f"--model {model}: {hardware} was measured with {measured.model}; give that model"
        )
    if gpus not in (None, measured.gpus):
        raise InvalidProfile(
            f"--gpus {gpus}: {hardware} was measured with {measured.gpus or 'the default number'}"
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
) -> Profile:
    """Return the analytic profile of a machine, or the measured one of a file, named by `hardware`.
    Raises InvalidProfile or DoesNotFit."""
    if not is_file(hardware):
        if model is None:
            raise InvalidProfile(f"--hardware {hardware}: an analytic profile needs a --model")
        return analytic_profile(
            hardware,
            model,
            gpus=gpus,
            max_model_len=max_model_len,
            kv_blocks=kv_blocks,
            offload=offload,
            scheduling=scheduling,
        )
    measured = measured_for(hardware, model, gpus)
    profile = with_cpu_time(measured.profile(), measured.cpu_time(scheduling), offload=offload)
    blocks = profile.kv_blocks if kv_blocks is None else kv_blocks
    capacity = blocks * profile.block_tokens
    if max_model_len is not None and max_model_len > capacity:
        raise DoesNotFit(
            f"--max-model-len {max_model_len}: {blocks} KV blocks of {profile.block_tokens} tokens "
            f"hold one request of {capacity}; give at most that, or more --kv-blocks"
        )
    if max_model_len is None:
        max_model_len = min(profile.max_model_len, capacity)
    return replace(profile, kv_blocks=blocks, max_model_len=max_model_len)
