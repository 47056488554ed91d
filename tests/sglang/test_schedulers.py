"""`--policies` of `--engine sglang`: SGLang's schedulers, with options of its radix cache."""

from __future__ import annotations

from itertools import pairwise

import pytest

from servers.basics.errors import InvalidInput, check_flags
from servers.profiles.kv_cache_dtype import KvCacheDtype
from servers.routers.base import UNKNOWN_COSTS
from servers.sglang.command_line import REFUSED_FLAGS, flags
from servers.sglang.schedulers import SglangScheduler, sglang_variants
from servers.variants import make_policy
from servers.vllm.launch.command_line import ServerConfig
from servers.vllm.models.model_folder import ResolvedModel

MODEL = ResolvedModel("m", "/models/m", ("--dtype", "bfloat16"), 8192)


def flags_of(text: str) -> tuple[str, ...]:
    (variant,) = sglang_variants(text)
    scheduler = make_policy(variant, UNKNOWN_COSTS)
    assert isinstance(scheduler, SglangScheduler)
    return scheduler.flags()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("fcfs", "fcfs --radix-eviction-policy lru"),
        ("lpm", "lpm --radix-eviction-policy lru"),
        ("lpm(eviction=slru)", "lpm --radix-eviction-policy slru"),
        ("fcfs(radix_cache=false)", "fcfs --radix-eviction-policy lru --disable-radix-cache"),
        ("fcfs(sessions=true)", "fcfs --radix-eviction-policy lru --enable-session-radix-cache"),
    ],
)
def test_a_variant_is_a_scheduler_and_options_of_the_radix_cache(text: str, expected: str) -> None:
    assert flags_of(text) == ("--schedule-policy", *expected.split())


def test_all_are_the_default_the_one_that_follows_the_cache_and_the_one_with_sessions() -> None:
    names = [variant.name for variant in sglang_variants("all")]
    assert names == ["fcfs", "lpm", "fcfs(sessions=true)"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("continuum", "is not a scheduler of SGLang, .* use --engine vllm for continuum"),
        ("fcfs+", "is not a scheduler of SGLang, .* use --engine vllm for fcfs+"),
        ("priority", "use fcfs, lpm, dfs-weight, lof, hrrn, shortest-prefill-first, routing-key"),
        ("fcfs(eviction=mru)", "eviction must be lru or lfu or slru or tlru, not mru"),
        ("fcfs(evict=lru)", "evict is not an argument of fcfs"),
        ("fcfs(long_prefill=512)", "long_prefill: .* SGLang, whose scheduler is not vLLM's and"),
        ("fcfs(radix_cache=false,eviction=lfu)", "has no radix cache; remove its other arguments"),
        ("lpm(radix_cache=false)", "does not run lpm without its radix cache; use fcfs"),
        ("hrrn(radix_cache=false)", "does not run hrrn without its radix cache"),
        ("lpm,lpm", "lpm is given twice"),
    ],
)
def test_what_it_does_not_have_is_refused_with_the_remedy(text: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message.replace("+", r"\+")):
        sglang_variants(text)


def test_settings_of_the_machine_become_its_flags_and_the_user_s_come_last() -> None:
    config = ServerConfig(
        model="m",
        kv_blocks=100,
        gpus=2,
        kv_cache_dtype=KvCacheDtype.FP8,
        flags=("--mem-fraction-static", "0.8"),
    )
    (variant,) = sglang_variants("fcfs")
    scheduler = make_policy(variant, UNKNOWN_COSTS)
    assert isinstance(scheduler, SglangScheduler)
    given = flags(config, scheduler, MODEL, 4000)
    options = dict(pairwise(given))
    assert options["--model-path"] == "/models/m"
    assert (options["--host"], options["--port"]) == ("127.0.0.1", "4000")
    assert options["--tp-size"] == "2"
    assert options["--max-total-tokens"] == options["--context-length"] == "1600"
    assert options["--kv-cache-dtype"] == "fp8_e4m3"
    assert {"--enable-metrics", "--enable-cache-report"} <= set(given)
    assert given[-2:] == ("--mem-fraction-static", "0.8")


@pytest.mark.parametrize(
    "flag", ["--host=0.0.0.0", "--api_key", "--schedule-policy", "--context-length"]
)
def test_flags_that_the_harness_sets_are_refused(flag: str) -> None:
    with pytest.raises(InvalidInput, match=f"^{flag.partition('=')[0]}: "):
        check_flags((flag, "x"), REFUSED_FLAGS)
