"""Mutated user input: ranges on the command line, experiments, tasks, profiles, configs of models,
costs, baselines, histories. Each gives an error in one line or a valid result."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from random import Random

import numpy as np
import orjson

from agents.command import command_agent
from agents.tasks import read_tasks
from harness.cli.commands.traces_recipes import output_range
from harness.experiments.definition import FOLDER, load
from harness.load.arrivals import parse_arrivals
from harness.load.rates import MAX_VALUES, parse_rates, parse_seeds
from harness.load.settings import Agents, Machine, Server, SweepSettings
from harness.load.settings_file import read_settings, settings_toml
from reports.compare.baseline import read_side
from servers.basics.errors import InvalidInput, TurnstileError
from servers.basics.text import printable
from servers.profiles import MODELS, analytic_profile, model, notes
from servers.profiles.files import read_measured
from servers.vllm.launch.cost_curve import read_costs
from tests.fuzz.loaders import assert_one_line, folder
from tests.fuzz.mutations import mutated, mutated_gzip
from tests.fuzz.target import Target
from tests.profiles.test_measured import measured
from traces.check import check
from traces.synthesis.draw import ProgramDraws
from traces.synthesis.known import FOLDER as RECIPES
from traces.synthesis.recipe_files import read_recipe

TASKS = b"\n".join(
    orjson.dumps(task)
    for task in (
        {"instance_id": "a__b-1", "problem_statement": "fix it", "base_commit": "c0de"},
        {"id": "b", "task": "run", "workspace": ".", "image": "docker.io/x:1"},
    )
)
COSTS = (
    b'{"base_s": 0.01, "linear_s": 1e-4, "quadratic_s": 1e-8, "reload_s_per_token": 1e-5, '
    b'"decode_step": {"base_s": 0.005, "turn_s": 2e-4, "context_token_s": 1e-7}}'
)
BASELINE = orjson.dumps(
    {"format": "turnstile-baseline-1", "engine": "sim", "virtual_time": "virtual time",
     "hardware": "a100-80g", "seeds": [1],
     "cells": [{"variant": "fcfs", "load": "0.1 jobs/s", "seed": 1, "jct_s": {"a": 1.5, "b": 2.0}},
               {"variant": "continuum", "load": "0.1 jobs/s", "seed": 1, "jct_s": {"a": 1.0}}],
     "invalid": {"lmcache_jps0.1_seed1": "not run yet"}}
)  # fmt: skip
SETTINGS = SweepSettings(
    jps="0.1",
    machine=Machine(gpus=2, offload_gb=1.5),
    server=Server(vllm_flags=("--seed", "1"), replicas=2),
    agents=Agents(agent="openhands", guided=True),
)
COMMANDS = (b"env -i 'a b' {task} --url {base_url}", b'sh -c "$0" {folder}')
RANGE = "0123456789.,:-+eE ainfx_\u0663\x00\n"
RANGES = ("0.05..0.9", "0.1,0.5", "0.05..0.9:0.05", "1..5", "0,3,7", "closed:4", "gamma:0.25",
          "poisson", "7..150", "0..1e9:1e-9", "1..999999999999999999")  # fmt: skip


def check_error(error: ValueError) -> None:
    assert isinstance(error, TurnstileError), f"{type(error).__name__}, a bug: {error}"
    assert_one_line(printable(str(error)))


def _range(parse: Callable[[str], object], data: bytes) -> bool:
    try:
        parsed = parse(data.decode())
    except ValueError as error:
        check_error(error)
        return False
    if isinstance(parsed, tuple) and parse is not output_range:
        assert 0 < len(parsed) <= MAX_VALUES
        assert list(parsed) == sorted(parsed)
    return True


def _a_range(random: Random) -> bytes:
    text = list(random.choice(RANGES))
    for _ in range(random.randint(0, 5)):
        at = random.randint(0, len(text))
        text[at : at + random.randint(0, 2)] = random.choices(RANGE, k=random.choice((0, 1, 1, 9)))
    return "".join(text).encode()


def _a_command(random: Random) -> bytes:
    return mutated(random.choice(COMMANDS), random).decode("utf-8", "replace").encode()


def _file(name: str, read: Callable[[Path], object], data: bytes) -> bool:
    path = folder() / name
    path.write_bytes(data)
    try:
        read(path)
    except OSError:  # `one_line_errors` reports it
        return False
    except ValueError as error:
        check_error(error)
        return False
    return True


@cache
def _experiments() -> tuple[bytes, ...]:
    return tuple(entry.read_bytes() for entry in FOLDER.iterdir())


def _experiment(random: Random) -> bytes:
    return _changed_toml(random.choice(_experiments()), random)


@cache
def _recipes() -> tuple[bytes, ...]:
    return tuple(file.read_bytes() for file in sorted(RECIPES.iterdir()))


def _recipe(random: Random) -> bytes:
    return _changed_toml(random.choice(_recipes()), random)


def _draw_recipe(path: Path) -> None:
    programs = ProgramDraws(read_recipe(path)).draw(3, np.random.default_rng(0))
    check(programs)


def _settings(random: Random) -> bytes:
    return _changed_toml(settings_toml(SETTINGS), random)


def _changed_toml(file: bytes, random: Random) -> bytes:
    """Change a TOML file as text: a value, a line, some bytes."""
    lines = file.decode().split("\n")
    for _ in range(random.randint(1, 3)):
        at = random.randrange(len(lines))
        key, equals, _ = lines[at].partition("=")
        others = ("nan", "-1", "1e400", "[]", "{}", '""', "true", "[[[]]]", '"<b>"', "[1, 'a']",
                  "1979-05-27", "9" * 40, '"\\u0007"', "[" * 500 + "]" * 500)  # fmt: skip
        change = random.randrange(5)
        if change < 3 and equals:
            lines[at] = f"{key}= {random.choice(others)}"
        elif change == 3:
            lines[at : at + 1] = []
        else:
            lines[at] = mutated(lines[at].encode(), random).decode("utf-8", "replace")
        lines = lines or [""]
    return "\n".join(lines).encode()


def _baseline(path: Path) -> None:
    side = read_side(path)
    try:
        side.refuse_invalid("a baseline")
    except InvalidInput as error:
        check_error(error)


def _gzipped(random: Random) -> bytes:
    return mutated_gzip(mutated(BASELINE, random), random)


def _model(path: Path) -> None:
    """Read the config of a model, and its profile on a machine with room for it or not."""
    llm = model(str(path))
    assert llm.weight_bytes > 0
    assert 0 < llm.kv_bytes_per_token <= llm.kv_bytes_per_token_on(8)
    profile = analytic_profile("b200", str(path))
    assert profile.step_ps(1, 1, 100, 0) > 0
    for note in notes(profile, llm=llm):
        assert_one_line(note)


@cache
def _configs() -> tuple[bytes, ...]:
    return tuple(orjson.dumps(llm.config) for llm in MODELS.values())


FILES: tuple[tuple[str, Callable[[Path], object], Callable[[Random], bytes], float], ...] = (
    ("e.toml", lambda path: load(str(path)), _experiment, 2),
    ("settings.toml", read_settings, _settings, 2),
    ("recipe.toml", _draw_recipe, _recipe, 1),
    ("tasks.jsonl", read_tasks, lambda r: mutated(TASKS, r), 3),
    ("profile.json", lambda p: read_measured(p).notes(), lambda r: mutated(_profile(), r), 2),
    ("config.json", _model, lambda r: mutated(r.choice(_configs()), r), 2),
    ("costs.json", read_costs, lambda r: mutated(COSTS, r), 3),
    ("baseline.json.gz", _baseline, _gzipped, 2),
)


@cache
def _profile() -> bytes:
    return measured().model_dump_json().encode()


TARGETS = [
    *(
        Target(name, _a_range, partial(_range, parse), share)
        for name, parse, share in (
            ("--jps", parse_rates, 20),
            ("--seeds", parse_seeds, 15),
            ("--arrivals", parse_arrivals, 5),
            ("--output-tokens", output_range, 3),
        )
    ),
    Target("--agent-command", _a_command, partial(_range, command_agent), 3),
    *(Target(name, make, partial(_file, name, read), share) for name, read, make, share in FILES),
]
