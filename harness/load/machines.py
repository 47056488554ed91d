"""Lists in --hardware, --model and --burst, which make several sweeps in virtual time.

In: the settings of a sweep. Out: the same settings for each machine, which is a GPU with a model,
or for each burst. A file of `bench profile` contains its model, so it forms one machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from harness.load.option import elements
from harness.load.rates import parse_bursts
from harness.load.settings import Machine, SweepSettings
from servers.basics.errors import InvalidInput, refuse_twice
from servers.profiles.files import is_file, read_measured
from servers.profiles.models.files import model_name


def is_list(settings: SweepSettings) -> bool:
    return has_machines(settings.machine) or len(bursts_of(settings)) > 1


def has_machines(machine: Machine) -> bool:
    return len(elements(machine.hardware)) > 1 or len(elements(machine.model)) > 1


def bursts_of(settings: SweepSettings) -> tuple[int, ...]:
    return () if settings.load.burst is None else parse_bursts(settings.load.burst)


def each_burst(settings: SweepSettings) -> dict[int, SweepSettings]:
    """Return the settings for each burst. Raise InvalidInput."""
    load, machine = settings.load, settings.machine
    if has_machines(machine):
        raise InvalidInput(
            f"--burst {load.burst}: is a list, and so is --hardware or --model; give one machine,"
            " or one burst"
        )
    if settings.no_capacity:
        raise InvalidInput(
            f"--burst {load.burst}: a list compares capacities; remove --no-capacity, or give one "
            "burst"
        )
    return {
        burst: replace(settings, load=replace(load, burst=str(burst)))
        for burst in bursts_of(settings)
    }


def refuse_list(machine: Machine) -> None:
    """Raise InvalidInput for a list, where only one machine is possible, and for an empty name."""
    for option, text in (("--hardware", machine.hardware), ("--model", machine.model)):
        if text is not None and not text.strip():
            names = "hardware" if option == "--hardware" else "models"
            raise InvalidInput(
                f"{option}: is empty; give a name of bench list {names}, or remove the option"
            )
        if len(elements(text)) > 1:
            raise InvalidInput(
                f"{option} {text}: only bench sweep in virtual time takes a list; give one of them"
            )


def each_machine(settings: SweepSettings) -> tuple[SweepSettings, ...]:
    """Return the settings for each machine. Raise InvalidInput."""
    machine = settings.machine
    hardware = _named_once("--hardware", elements(machine.hardware)) or (None,)
    models = _named_once("--model", elements(machine.model)) or (None,)
    pairs = [(gpu, model) for gpu in hardware for model in _models_on(gpu, models)]
    used = {model for _, model in pairs}
    for model in models:
        if model not in used:
            raise InvalidInput(
                f"--model {model}: no machine of --hardware {machine.hardware} has it; a file of "
                "bench profile runs only its own model"
            )
    return tuple(
        replace(settings, machine=replace(machine, hardware=gpu, model=model))
        for gpu, model in pairs
    )


def _named_once(option: str, names: Sequence[str]) -> tuple[str, ...]:
    for name in names:
        if not name:
            raise InvalidInput(f"{option} {','.join(names)}: has an empty name; remove a comma")
    refuse_twice(f"{option} {','.join(names)}", names)
    return tuple(names)


def _models_on(gpu: str | None, models: Sequence[str | None]) -> Sequence[str | None]:
    """Return the models that are run on a GPU: all, or the one that a profile file contains."""
    if gpu is None or models == (None,) or not is_file(gpu):
        return models
    own = read_measured(Path(gpu)).model
    found = [model for model in models if model is not None and own in (model, model_name(model))]
    if not found:
        raise InvalidInput(
            f"--model {','.join(map(str, models))}: {gpu} is a profile of {own}; add {own} to "
            "--model, or remove the file"
        )
    return found
