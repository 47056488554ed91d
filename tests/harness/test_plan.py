"""`bench plan`: which machines are searched, what they cost, and what is refused."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from in_process import bench
from msgspec import structs
from small import GPU
from test_agents_sweep import agents_plan

from harness.cli.commands.plan import deployment
from harness.engines.sim import SimEngine
from harness.load.prices import priced_hardware
from harness.load.settings import Execution, Machine, Overlong, Server, SweepSettings
from harness.sweep import planning
from harness.sweep.plan import SweepPlan
from harness.sweep.planning import (
    Candidate,
    candidates,
    default_folder,
    parse_numbers,
    parse_wanted,
    search,
)
from reports.answer.capacity_context import HOURS_PER_MONTH
from reports.answer.fails_first import NO_STEADY_STATE
from reports.capacity.estimate import Capacity, Kind
from reports.capacity.slo import parse_slo
from reports.compare import plans
from reports.compare.plans import P95_JCT, Plan, findings, front, headline, read_plans
from reports.compare.plans_page import _figure, draw, table
from reports.figures.styles import styles
from reports.metrics.cells import Results, collect
from reports.run_folder.read import Run, read_sweep
from reports.statistics.capacities import VariantCapacity
from servers.basics.errors import InvalidInput
from servers.profiles import HARDWARE
from servers.profiles.kv_cache_dtype import KvCacheDtype
from servers.profiles.machines.gpus import LIST_PRICES
from servers.records.sweep import PriceRecord
from tests.sentences import mentions, without_tags
from traces import Program, Turn
from traces.formats.native import write_programs

ONE_USD = PriceRecord(1.0, "--price")
AGENTS = 12
P95_SLO = parse_slo("p95<=99s")
(MEAN_JCT,) = parse_slo("mean<=2x").limits


def plan_on(gpus: int, slo: str = "mean<=2x") -> SweepPlan:
    plan = agents_plan("fcfs,continuum", slo=slo)
    assert isinstance(plan.engine, SimEngine)
    return replace(plan, price=ONE_USD, engine=replace(plan.engine, gpus=gpus))


def candidate(gpus: int, slo: str = "mean<=2x") -> Candidate:
    return Candidate(plan_on(gpus, slo), None, gpus * HOURS_PER_MONTH)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("plan")


@pytest.fixture(scope="module")
def found(folder: Path) -> tuple[list[Plan], list[str]]:
    result = search(
        [candidate(2, "mean<=1ms"), candidate(1), candidate(9)],
        *(AGENTS, folder, Execution(workers=1)),
    )
    assert not result.failed
    return result.plans, result.left_out


def test_a_plan_has_as_many_whole_machines_as_hold_with_every_seed(
    found: tuple[list[Plan], list[str]],
) -> None:
    assert {plan.policy for plan in found[0]} == {"fcfs", "continuum"}
    for plan in found[0]:
        assert (plan.machines - 1) * plan.serves < AGENTS <= plan.could_serve
        assert plan.each <= plan.serves
        assert plan.usd_per_month == plan.machines * HOURS_PER_MONTH  # one GPU for 1 USD
        # The cell with that many agents ran, and meets the SLO.
        assert plan.times[MEAN_JCT] <= plan.times[P95_JCT]
        assert float(plan.each) in read_sweep(plan.folder).amounts


def test_what_cannot_be_cheaper_or_never_holds_is_left_out_with_the_reason(
    found: tuple[list[Plan], list[str]],
) -> None:
    unreachable, dominated = found[1]
    assert mentions(dominated, "9 x a100-80g", "not searched", "6,570 USD", "not cheaper")
    assert mentions(unreachable, "2 x a100-80g", "--slo 'mean<=1ms'", "idle machine")


def test_the_same_search_resumes_and_another_number_of_agents_adds_cells(
    found: tuple[list[Plan], list[str]], folder: Path
) -> None:
    again = search([candidate(1)], AGENTS, folder, Execution(workers=1))
    assert again.plans == found[0]
    one = search([candidate(1)], 1, folder, Execution(workers=1)).plans
    assert {(plan.machines, plan.each) for plan in one} == {(1, 1)}
    assert all(plan.times for plan in one)


def test_cells_are_added_until_the_agents_on_each_machine_have_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[tuple[float, ...]] = []

    def run(_: SweepPlan, loads: tuple[float, ...], *_more: object) -> dict[str, str]:
        ran.append(loads)
        return {}

    def found(_: Path, agents: int) -> tuple[list[Plan], list[str]]:
        serves = 6 if len(ran) == 1 else 5  # The cell with 6 agents lowers the capacity.
        return [plan(1.0, 9.0, serves=serves, asked=agents)], []

    monkeypatch.setattr(planning, "_run", run)
    monkeypatch.setattr(planning, "read_plans", found)
    result = search([candidate(1)], 30, tmp_path, Execution(workers=1))
    assert ran == [(), (6.0,), (5.0, 6.0)]
    assert [each.machines for each in result.plans] == [6]


def test_a_policy_with_a_cell_that_failed_a_validity_gate_is_left_out(
    found: tuple[list[Plan], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def invalid(run: Run) -> Results:
        results = collect(run)
        rows = results.cells["variant"] == "continuum"
        results.cells.loc[rows, "failed_gates"] = "G3: too few turns"
        return results

    monkeypatch.setattr(plans, "collect", invalid)
    holding, left_out = read_plans(found[0][0].folder, AGENTS)
    assert [each.policy for each in holding] == ["fcfs"]
    assert "continuum is left out, because " in left_out[0]


def test_statistics_that_have_not_run_are_not_announced() -> None:
    assert not any("on each machine" in s for s in findings([plan(2.0, 9.0, times={})], P95_SLO))


def test_the_page_has_the_front_the_plans_and_the_commands(
    found: tuple[list[Plan], list[str]], tmp_path: Path
) -> None:
    slo = parse_slo("mean<=2x")
    draw(found[0], AGENTS, slo, found[1], ["bench serve --policy fcfs"], tmp_path / "plan.html")
    page = (tmp_path / "plan.html").read_text()
    assert headline(found[0], AGENTS, slo) in without_tags(page)
    assert "bench serve --policy fcfs" in page
    assert "not searched, because one machine costs" in page
    costs = [row.cells[0].text for row in table(found[0], slo).rows]
    assert costs == sorted(costs, key=lambda text: float(text.replace(",", "")))
    assert findings(found[0], slo)[0].startswith("It serves at most ")


def test_the_labels_of_neighbours_on_the_front_are_above_and_below_their_dots() -> None:
    plans = [plan(2.0, 9.0), plan(3.0, 8.0)]
    figure = _figure(P95_JCT, plans, styles(plans[0].sweep.variants))
    assert figure.specs[""]["data"][1]["textposition"] == ["top center", "bottom center"]


def plan(usd_per_gpu_hour: float, p95_s: float, serves: int = 40, **more: Any) -> Plan:
    sweep = plan_on(1).sweep_record()
    price = PriceRecord(usd_per_gpu_hour, "--price")
    return Plan(
        structs.replace(sweep, price=price, seeds=more.get("seeds", sweep.seeds)),
        Path("run"),
        "fcfs",
        None,
        more.get("asked", 40),
        serves,
        more.get("limit", "mean<=2x"),
        more.get("times", {P95_JCT: p95_s}),
        more.get("predicted"),
    )


def test_the_front_has_no_plan_that_another_beats_in_cost_and_latency() -> None:
    cheap, fast = plan(1.0, 90.0), plan(3.0, 50.0)
    slower, dearer = plan(1.0, 95.0), plan(4.0, 50.0)
    assert front([dearer, fast, slower, cheap], lambda f: f.times[P95_JCT]) == [cheap, fast]


def test_forty_agents_on_machines_for_fifteen_need_three_with_a_margin_of_five() -> None:
    one = plan(2.0, 90.0, serves=15)
    assert (one.machines, one.each, one.could_serve) == (3, 14, 45)
    assert one.usd_per_month == 3 * 2 * 730
    margin, seeds, *_ = findings([one], P95_SLO)
    assert mentions(margin, "45 agents", "12%", "mean<=2x")
    assert mentions(seeds, "One seed", "miss the SLO")


def test_machines_are_as_many_as_serve_the_agents_with_95_percent_of_other_jobs() -> None:
    """A machine serves 15 agents with every seed, but with other jobs perhaps only 12."""
    few = plan(2.0, 90.0, serves=15, seeds=(1, 2, 3), predicted=12)
    assert (few.machines, few.each, few.could_serve) == (4, 10, 48)
    predicted = "48 agents", "95%", "12", "3 seeds", "15", "20%", "mean<=2x"
    assert mentions(findings([few], P95_SLO)[0], *predicted)
    assert few.document()["could_serve_with_every_seed"] == 60
    easy = plan(2.0, 90.0, serves=15, seeds=(1, 2, 3), predicted=16)
    assert (easy.machines, easy.could_serve) == (3, 45)


def test_a_machine_that_sustains_all_that_a_search_tries_misses_nothing() -> None:
    most = plan(2.0, 90.0, serves=4096, limit=None)
    assert findings([most], P95_SLO)[0].startswith("It serves at least 4,096 agents ")
    assert most.document()["fails_first"] is None
    assert table([most], P95_SLO).rows[0].cells[-1].text == "nothing up to 4,096 agents each"
    unstable = plan(2.0, 90.0, limit=NO_STEADY_STATE)
    assert mentions(findings([unstable], P95_SLO)[0], "without a margin", "no steady state")


def test_one_agent_misses_a_limit_or_has_no_steady_state_or_even_an_idle_machine_misses() -> None:
    limit, unstable = (Capacity(Kind.NEVER, math.nan, None, 1.0, of) for of in ("mean<=2x", ""))
    idle, serves = Capacity(Kind.NEVER, math.nan, None, None), Capacity(Kind.FOUND, 5.0, 5.0, 6.0)
    by_seed = dict(enumerate([limit, unstable, idle, serves]))
    missed = plans._missed(VariantCapacity("fcfs", "", by_seed, None)).split(", ")
    assert missed[:2] == ["mean<=2x", "no steady state"]
    assert mentions(missed[2], "idle machine")


def test_limits_relative_to_an_idle_machine_are_pointed_out() -> None:
    (*_, relative) = findings([plan(2.0, 90.0)], parse_slo("mean<=2x"))
    assert mentions(relative, "mean<=2x", "relative to each idle machine")
    assert not mentions(findings([plan(2.0, 90.0)], P95_SLO), "relative")


def test_the_commands_serve_the_cheapest_plan() -> None:
    machine, server = Machine(), Server()
    serve, vllm = deployment(plan(1.0, 9.0), SweepSettings(machine=machine, server=server))
    assert serve == "bench serve --model FOLDER_OF_llama-3.1-8b --policy fcfs --gpus 1"
    assert vllm.startswith("vllm serve FOLDER_OF_llama-3.1-8b --tensor-parallel-size 1 ")
    tuned = replace(plan(1.0, 9.0), policy="fcfs(long_prefill=512)")
    serve, vllm = deployment(tuned, SweepSettings(machine=Machine(watermark=0.1)))
    assert "--policy 'fcfs(long_prefill=512)' --gpus 1 --watermark 0.1" in serve
    assert vllm.endswith(" --long-prefill-token-threshold 512 --watermark 0.1")
    routed = replace(plan(1.0, 9.0), policy="lmcache@sticky", offload_gb=50.0)
    (command,) = deployment(routed, SweepSettings(server=Server(replicas=1)))
    assert command.endswith("--offload-gb 50 --replicas 1 --router sticky")
    machine = Machine(kv_cache_dtype=KvCacheDtype.FP8, max_model_len=32768)
    serve, vllm = deployment(plan(1.0, 9.0), SweepSettings(machine=machine))
    for command in (serve, vllm):
        assert command.endswith(" --kv-cache-dtype fp8 --max-model-len 32768")
    serve, _ = deployment(plan(1.0, 9.0), SweepSettings(machine=Machine(step_tokens=8192)))
    assert serve.endswith(" --gpus 1 --step-tokens 8192")
    (command,) = deployment(replace(plan(1.0, 9.0), policy="continuum(k=50)"), SweepSettings())
    assert " --policy 'continuum(k=50)' " in command


def settings(**machine: Any) -> SweepSettings:
    load = replace(SweepSettings().load, traces=("execution-note",), arrivals="agents")
    return SweepSettings(policies="fcfs,lmcache", load=load, machine=Machine(**machine))


def test_policies_without_a_tier_run_once_and_those_with_one_at_each_size() -> None:
    found, left_out = candidates(settings(hardware="h100,l4"), (None,), (0, 50, 100))
    assert [c.folder for c in found] == [
        *("llama-3.1-8b_1-l4", "llama-3.1-8b_1-l4_50gb", "llama-3.1-8b_1-l4_100gb"),
        *("llama-3.1-8b_1-h100", "llama-3.1-8b_1-h100_50gb", "llama-3.1-8b_1-h100_100gb"),
    ]
    assert [v.name for v in found[0].plan.variants] == ["fcfs"]
    assert [v.name for v in found[1].plan.variants] == ["lmcache"]
    assert not left_out


def test_without_a_tier_only_policies_without_one_are_left() -> None:
    (one,), _ = candidates(settings(hardware="h100"), (None,), (0,))
    assert [v.name for v in one.plan.variants] == ["fcfs"]
    offloading = replace(settings(hardware="h100"), policies="lmcache")
    with pytest.raises(InvalidInput, match=r"--offload-gb 0: .* --policies lmcache"):
        candidates(offloading, (None,), (0,))


def test_policies_that_offload_are_left_out_for_a_model_without_a_tier_only() -> None:
    both = settings(hardware="h100", model="llama-3.1-8b,nemotron-3-nano-30b-a3b")
    found, left_out = candidates(both, (None,), (200,))
    assert {c.folder: [v.name for v in c.plan.variants] for c in found} == {
        "llama-3.1-8b_1-h100_200gb": ["fcfs", "lmcache"],
        "nemotron-3-nano-30b-a3b_1-h100": ["fcfs"],
    }
    (reason,) = left_out
    assert mentions(reason, "lmcache: has an offload tier", "nemotron-3-nano-30b-a3b")


def test_gpus_that_cannot_share_the_heads_are_left_out_with_the_reason() -> None:
    found, left_out = candidates(settings(hardware="h100"), (1, 3), (None,))
    assert [c.gpus for c in found] == [1]
    (reason,) = left_out
    assert mentions(reason, "--gpus 3", "llama-3.1-8b", "32 heads and 8 KV heads", "3 GPUs")


def test_another_price_is_another_order_in_the_same_folder() -> None:
    cheap, dear = (
        candidates(replace(settings(hardware="h100,l4"), price=f"l4={usd}"), (None,), (None,))[0]
        for usd in (0.5, 9)
    )
    assert [c.folder for c in cheap] == [c.folder for c in dear][::-1]
    assert default_folder(cheap, 40) == default_folder(dear, 40)


def test_a_model_that_does_not_fit_a_machine_leaves_it_out() -> None:
    large = settings(hardware="l4,b300", model="qwen3-32b")
    found, left_out = candidates(large, (1,), (None,))
    assert [c.folder for c in found] == ["qwen3-32b_1-b300"]
    assert len(left_out) == 1
    assert "qwen3-32b" in left_out[0]


def test_a_machine_that_holds_no_job_is_left_out(tmp_path: Path) -> None:
    write_programs(tmp_path / "long.jsonl", [Program("p", (Turn(40_000, 5),))])
    both = settings(hardware="l4,h100")
    long = replace(both, load=replace(both.load, traces=(f"{tmp_path}/long.jsonl",)))
    found, (reason,) = candidates(long, (1,), (None,))
    assert [c.folder for c in found] == ["llama-3.1-8b_1-h100"]
    assert mentions(reason, "40000 prompt", "llama-3.1-8b on l4")
    programs = [Program("p", (Turn(40_000, 5),)), Program("q", (Turn(100, 5),))]
    write_programs(tmp_path / "long.jsonl", programs)
    refuse = replace(long, load=replace(long.load, overlong=Overlong.REFUSE))
    with pytest.raises(InvalidInput, match="40000 prompt") as refused:
        candidates(refuse, (1,), (None,))
    assert "use more --gpus, or --hardware" in str(refused.value)
    assert "--kv-blocks" not in str(refused.value)  # `bench plan` has no such option


def test_a_model_that_fits_no_machine_is_refused_with_a_line_for_each() -> None:
    options = ("--hardware", "l4,a100-80g", "--gpus", "1", "--model", "llama-3.1-70b")
    code, _, err = bench("plan", "execution-note", "--agents", "4", *options)
    l4, a100, refusal = err.splitlines()
    assert mentions(l4, "left out", "llama-3.1-70b", "1 x l4", "weights")
    assert a100.endswith("; use --gpus 2")
    assert code == 2
    assert mentions(refusal, "no machine of --hardware", "--gpus or --model")


def test_a_plan_takes_the_limits_of_a_step_which_its_commands_name() -> None:
    options = ("--max-num-seqs", "300", "--step-tokens", "200")
    code, _, err = bench("plan", "execution-note", "--agents", "4", *options)
    assert mentions(err, "--step-tokens 200", "--max-num-seqs 300")
    assert code == 2


def test_hardware_without_a_price_is_refused_with_the_remedy(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(GPU.replace('price = "1.2 USD/h"\n', ""))
    with pytest.raises(InvalidInput, match=r"--hardware mine: .*; add --price mine=USD"):
        candidates(settings(hardware=str(file)), (None,), (None,))


def test_prices_by_hardware_are_for_the_machines_that_they_name() -> None:
    given = replace(settings(hardware="h100,l4"), price="h100=0.1")
    found, _ = candidates(given, (None,), (None,))
    assert [(c.plan.engine.hardware, c.usd_per_month) for c in found] == [
        ("h100", pytest.approx(73)),
        ("l4", pytest.approx(0.44 * 730)),  # the list price
    ]
    assert [c.plan.settings.price for c in found] == ["0.1", None]
    with pytest.raises(InvalidInput, match=r"--price h10=1: .*; did you"):
        candidates(replace(given, price="h10=1"), (None,), (None,))


def test_a_plan_on_all_hardware_takes_the_gpus_with_a_price() -> None:
    assert {"h100", "mi300x"} <= {*priced_hardware(None)} == HARDWARE.keys() & LIST_PRICES.keys()
    assert {*priced_hardware("mi355x=4")} - {*priced_hardware(None)} == {"mi355x"}
    assert priced_hardware("2.5") == [*HARDWARE]


@pytest.mark.parametrize("text", ["0", "-1", "4.5", "many", "", "1000001"])
def test_the_wanted_agents_are_a_whole_number(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"whole number of agents from 1 to 1,000,000"):
        parse_wanted(text)


def test_lists_of_numbers_are_whole_and_sorted() -> None:
    assert parse_numbers("--gpus", "4,1,2", 1) == (1, 2, 4)
    assert parse_numbers("--gpus", None, 1) == (None,)
    for text in ("0", "1,", "two", "1.5"):
        with pytest.raises(InvalidInput, match=r"--gpus .* whole numbers of at least 1"):
            parse_numbers("--gpus", text, 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("execution-note --arrivals poisson", "--arrivals poisson: a plan is for agents"),
        ("run/sweep.toml", "run/sweep.toml: a plan takes no settings file; give traces, and"),
        ("execution-note --hardware all,h100", "--hardware all,h100: all stands alone; remove"),
    ],
)
def test_what_a_plan_cannot_take_is_refused_in_one_line(arguments: str, message: str) -> None:
    code, _, err = bench("plan", *arguments.split(), "--agents", "4")
    assert (code, err.count("\n")) == (2, 1)
    assert message in err


@pytest.mark.parametrize("document", ["sweep.json", "members.json"])
def test_the_run_folder_of_a_sweep_is_no_folder_for_a_plan(tmp_path: Path, document: str) -> None:
    (tmp_path / document).write_text("{}")
    code, _, err = bench("plan", "execution-note", "--agents", "4", "--out", str(tmp_path))
    assert (code, err.count("\n")) == (2, 1)
    assert mentions(err, "run folder of a sweep", "name another folder")


def test_a_plan_document_has_what_a_script_needs() -> None:
    document = json.loads(json.dumps(plan(2.0, 90.0, serves=15).document()))
    assert document["machines"] == 3
    assert document["could_serve"] == 45
    assert document["fails_first"] == "mean<=2x"


def test_speeds_of_a_document_are_tokens_per_second_and_times_are_seconds() -> None:
    slo = parse_slo("speed_p90>=30")
    (speed,) = slo.limits
    fast = plan(2.0, 0.0, times={speed: 0.025, P95_JCT: 90.0})
    assert fast.document()["statistics"] == {"speed_p90": 40.0, "p95": 90.0}
    assert mentions(findings([fast], slo), "P90 output tokens/s 40, P95 JCT 90.0 s")
