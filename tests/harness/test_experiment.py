"""`bench experiment`: files with sweeps and claims, runs that resume, and verdicts."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from contextlib import chdir
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest

from harness.experiments.definition import Synthesis, load, names, plans, with_engine
from harness.load.settings import Machine, SweepSettings
from servers.basics.errors import InvalidInput, MeasurementUnavailable, NotInstalled
from servers.vllm.launch.find_vllm import VllmInstallation
from tests.harness import in_process
from tests.sentences import mentions
from traces.synthesis.conversation import ConversationShape

ROWS = (
    "fig4 fig8 fig9 fig10 fig11 fig12 fig13 fig14 fig15 fig16 note-gpus "
    "note-policy note-turns table4 table5 v1-fig12"
)
"""Figures and tables of the sources that have numbers or a claim about servers."""

SMALL = """
title = "Small"
source = "nobody, Figure 0"
claim = "Continuum never loses."

[sweep]
hardware = "a100-80g"
model = "llama-3.1-8b"
policies = "fcfs,continuum"
jps = "0.1"
seeds = "1..2"

[workload]
recipe = "execution-note"
programs = 6

[[arms]]
name = "as it is"

[[arms]]
name = "few at once"
sweep = { max_num_seqs = 2 }

[[checks]]
says = "never slower than twice"
of = "fcfs"
to = "continuum"
least = 0.5
published = "never"
"""


CONVERSATION = """
[workload]
programs = 4
shared_tokens = 64

[workload.conversation]
turns = 2
first_prompt = 128
new_tokens = 16
output_tokens = 4
"""
CONVERSATION_WITH_A_NEGATIVE_GAP = (
    "conversation = { turns = 1, first_prompt = 9, new_tokens = 9, output_tokens = 9, gap_s = -3 }"
)


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.toml").write_text(SMALL)
    return tmp_path / "small.toml"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of SMALL, whose cells a run with other claims takes."""
    folder = tmp_path_factory.mktemp("finished")
    (folder / "small.toml").write_text(SMALL)
    with chdir(folder):
        code, _, err = bench("small.toml", "--out", "out", "--workers", "1")
    assert code == 0, err
    return folder / "out"


def mixed(stream: str) -> str:
    """Return an experiment whose first arm runs programs once, and whose second arm is a stream."""
    text = SMALL.replace("programs = 6", "").replace("sweep = { max_num_seqs = 2 }", stream)
    return text.replace('name = "as it is"', 'name = "as it is"\nworkload = { programs = 6 }')


def bench(*arguments: str) -> tuple[int, str, str]:
    return in_process.bench("experiment", *arguments)


def test_every_row_of_the_sources_is_listed_in_their_order() -> None:
    own = [n for n in names() if not n.startswith(("capacity", "open-", "world-"))]
    assert own == ROWS.split()
    code, out, _ = in_process.bench("list", "experiments")
    assert code == 0
    assert [line.split("\t")[0] for line in out.splitlines()] == names()


@pytest.mark.parametrize("name", names())
def test_each_experiment_file_has_valid_plans_with_the_rules_of_its_sources_engine(
    name: str, tmp_path: Path
) -> None:
    """The papers and the note used vLLM 0.7 or 0.10, which admit a turn when its first chunk fits,
    and whose GPU waits for the scheduler."""
    experiment = load(name)
    assert experiment.claim
    one_seed = with_engine("sim", None, None, seeds="1")
    plan_by_arm = {part.arm.name: part.plan for part in plans(experiment, tmp_path, one_seed)}
    policies = {v.name for plan in plan_by_arm.values() for v in plan.variants}
    for check in experiment.checks if experiment.is_sweep else ():
        assert {check.of, check.to or check.of} <= policies, check.says
        assert set(check.arms) <= {arm.name for arm in experiment.all_arms()}, check.says
        loads = {cell.amount for plan in plan_by_arm.values() for cell in plan.cells()}
        assert set(check.loads) <= loads, check.says
    if name.startswith("world-"):
        return
    if experiment.is_sweep:
        assert "vLLM 0.10.2" in experiment.source_engine or "vLLM 0.7.2" in experiment.source_engine
    for plan in plan_by_arm.values():
        assert plan.engine.settings().scheduling == "sync"
        if name != "open-admission":
            assert plan.engine.settings().limits.admission == "first-chunk"


@pytest.mark.parametrize("name", [name for name in names() if name.startswith("world-")])
def test_an_experiment_on_a_run_of_others_has_a_source_a_prediction_and_what_is_assumed(
    name: str,
) -> None:
    experiment = load(name)
    assert re.search(r"\.(com|io|ai)\b", experiment.source), "where the numbers are published"
    assert experiment.predicts
    assert experiment.assumes.startswith("Known: ")
    assert "Assumed: " in experiment.assumes


def test_jobs_have_the_shared_prefixes_in_turn() -> None:
    lengths = ConversationShape(turns=1, first_prompt=128, new_tokens=16, output_tokens=4)
    drawn = Synthesis(conversation=lengths, programs=3, shared_tokens=64, shared_prefixes=2).draw()
    first, second, third = (program.turns[0].prefixes[0] for program in drawn)
    assert first == third != second
    assert (first.tokens, second.tokens) == (64, 64)


def test_stated_lengths_run_at_a_number_of_agents_and_give_a_knee(small: Path) -> None:
    text = SMALL.replace('policies = "fcfs,continuum"\njps = "0.1"', 'policies = "fcfs"')
    text = text.replace('[workload]\nrecipe = "execution-note"\nprograms = 6', CONVERSATION)
    text = text.replace("[sweep]", "[sweep]\nonce = false\nno_capacity = true")
    text = text.replace('name = "as it is"', 'name = "two"\nx = 2\nsweep = { agents = "2" }')
    text = text.replace(
        'name = "few at once"\nsweep = { max_num_seqs = 2 }',
        'name = "three"\nx = 3\nsweep = { agents = "3" }',
    )
    small.write_text(text.replace('to = "continuum"', 'metric = "ttft_p50_s"\nabove = 0.0001'))
    code, _, err = bench("small.toml", "--out", "out", "--workers", "1")
    assert code == 0, err
    (finding,) = json.loads(Path("out/small/experiment.json").read_text())["findings"]
    assert finding["is_capacity"]
    bound = "at most 2, the first arm"
    assert (finding["ours"], finding["outcome"]) == (bound, "cannot be said")
    assert [(point["value"], point["bounds"]) for point in finding["points"]] == [(2.0, bound)]


@pytest.mark.parametrize(
    ("options", "changed"),
    [
        (("--jps", "0.2"), "--jps 0.2 instead of 0.1"),
        (("--seeds", "7", "--scheduling", "sync"),
         "--seeds 7 instead of 1..2; --scheduling sync instead of async"),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("small")
def test_options_that_change_the_experiment_are_named_on_the_terminal_and_the_page(
    options: tuple[str, ...], changed: str
) -> None:
    code, out, err = bench("small.toml", "--out", "out", *options)
    assert code == 0, err
    sentence = f"Changed with options: {changed}."
    assert f"\n  {sentence}\n" in out
    assert sentence == json.loads(Path("out/small/experiment.json").read_text())["caveats"][0]
    assert sentence in Path("out/small/experiment.html").read_text()


@pytest.mark.usefixtures("small")
def test_a_run_writes_a_page_and_a_verdict_and_a_second_run_reuses_its_cells() -> None:
    code, out, err = bench("small.toml", "--out", "out")
    assert code == 0, err
    assert "Changed" not in out
    assert mentions(out, "small", "Holds", "never slower than twice (")
    result = json.loads(Path("out/small/experiment.json").read_text())
    assert result["verdict"].startswith("Holds")
    assert [f["outcome"] for f in result["findings"]] == ["holds"]
    first, second = result["setups"]
    assert first["arms"] == ["as it is"]
    assert first["machine"] == "a100-80g"
    assert first["model"] == "llama-3.1-8b"
    assert (first["admission"], first["scheduling"]) == ("whole-prompt", "async")
    assert (first["max_num_seqs"], second["max_num_seqs"]) == (256, 2)
    page = Path("out/small/experiment.html").read_text()
    assert "as it is: mean JCT" in page
    assert "nobody, Figure 0" in page
    assert "whole-prompt</td>" in page
    code, again, err = bench("small.toml", "--out", "out")
    assert (code, again) == (0, out)
    assert err.count("8 of 8 cells were finished already") == 1


@pytest.mark.parametrize(
    ("bound", "option", "code", "outcome"),
    [
        ("least = 3.0", (), 0, "Does not hold: “never slower than twice”, ours 1.0"),
        ("least = 3.0", ("--strict",), 1, "Does not hold: "),
        ("least = 0.5", ("--strict",), 0, "Holds: "),
        ("least = 3.0", ("--strict", "--seeds", "1"), 0, "Cannot be said: "),
    ],
)
def test_a_failed_claim_is_a_result_and_with_strict_an_error(
    small: Path, finished: Path, bound: str, option: tuple[str, ...], code: int, outcome: str
) -> None:
    small.write_text(SMALL.replace("least = 0.5", bound))
    shutil.copytree(finished, "out")
    found, out, err = bench("small.toml", "--out", "out", "--workers", "1", *option)
    assert found == code, err
    assert outcome in out


def test_each_seed_has_its_own_programs_and_five_seeds_are_the_default(small: Path) -> None:
    small.write_text(SMALL.replace('seeds = "1..2"\n', ""))
    parts = [part for part in plans(load("small.toml"), Path("out")) if part.arm.name != "few"]
    assert [part.plan.seeds for part in parts[:5]] == [(1,), (2,), (3,), (4,), (5,)]
    workloads = [part.plan.workload.record() for part in parts[:5]]
    assert all(one != other for one, other in combinations(workloads, 2))
    assert workloads == [part.plan.workload.record() for part in parts[5:]]


def test_an_arm_whose_jobs_are_a_stream_draws_its_programs_from_the_recipe(small: Path) -> None:
    small.write_text(mixed('sweep = { once = false, jps = "auto", seeds = "1..3" }'))
    parts = [p for p in plans(load("small.toml"), Path("out")) if p.arm.name == "few at once"]
    (plan,) = [part.plan for part in parts]
    assert (plan.steady, plan.seeds, plan.amounts) == (True, (1, 2, 3), ())
    assert plan.workload.fresh is not None


def test_the_latency_of_a_turn_and_the_numbers_of_a_workload_can_be_claimed(
    small: Path, finished: Path
) -> None:
    shutil.copytree(finished, "out")
    small.write_text(
        SMALL
        + """
[[checks]]
says = "the first turn is short"
of = "fcfs"
metric = "turn_mean_s"
turn = 1
most = 5.0
published_from = 1.263
"""
    )
    code, out, err = bench("small.toml", "--out", "out", "--workers", "1")
    assert code == 0, err
    assert re.search(r"holds: the first turn .*: \d+ ms", out)
    page = Path("out/small/experiment.html").read_text()
    assert "95% intervals over seeds; dashed lines: published 1.263" in page


def test_the_variants_of_the_claims_are_highlighted_among_many(small: Path) -> None:
    others = "autellix,context-serve,continuum-v1,infercept,program-fcfs,static-ttl"
    many = SMALL.replace('"fcfs,continuum"', f'"fcfs,continuum,{others}"').replace("1..2", "1")
    small.write_text(many)
    code, _, err = bench("small.toml", "--out", "out", "--workers", "1")
    assert code == 0, err
    page = Path("out/small/experiment.html").read_text()
    chips = re.findall(r'data-variant="([^"]+)" aria-pressed="true"', page)
    assert chips == ["fcfs", "continuum"]


def test_an_slo_that_an_idle_machine_does_not_meet_is_refused_with_the_name_of_the_arm(
    small: Path,
) -> None:
    small.write_text(mixed('sweep = { once = false, jps = "auto", slo = "mean<=1s" }'))
    code, out, err = bench("small.toml", "--out", "out")
    assert (code, out) == (2, "")
    assert mentions(err, "few-at-once", "--slo 'mean<=1s'", "idle machine", "mean JCT")
    assert not list(Path("out").rglob("sweep.json"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            ("max_num_seqs = 2", "max_seqs = 2"),
            "sweep.max_seqs is 2: unknown; did you mean max_num_seqs?",
        ),
        (
            ("max_num_seqs = 2", "offload_gb = inf"),
            "sweep.offload_gb is inf: must be a finite number",
        ),
        (("least = 0.5", "leest = 0.5"), "checks.0.leest is 0.5: not a field of this format"),
        (('recipe = "execution-note"', ""), "workload: give either a recipe or a conversation"),
        (('"execution-note"', '"nope"'), "workload.recipe is 'nope': must be one of swe-bench, "),
        (("[sweep]", "[sweep"), "small.toml"),
        (('title = "Small"', "title = 5"), "title is 5: must be a valid string"),
        (("programs = 6", "programs = 0"), "workload: programs is 0: must be greater"),
        (('policies = "fcfs,', 'policies = "fifo,'), "sweep.policies: no policy is called 'fifo'"),
        (('jps = "0.1"', 'jps = "abc"'), "sweep.jps: --jps 'abc': "),
        (
            ('jps = "0.1"', 'agents = "8"'),
            "sweep.arrivals: give one number of agents and once = false, with an arm for each",
        ),
        (("least = 0.5", 'metric = "nope"'), "checks.0.metric is 'nope': "),
        (('of = "fcfs"', 'of = "zzz"'), "checks.0.of is 'zzz': must be one of continuum, fcfs\n"),
        (('to = "continuum"', 'to = "all"'), "checks.0.to is 'all': must be one of continuum, f"),
        (("least = 0.5", 'arms = ["it"]'), "checks.0.arms is 'it': must be one of as it is, few"),
        (("least = 0.5", "loads = [0.1, 7]"), "checks.0.loads is 7.0: must be one of 0.1\n"),
        (("least = 0.5", 'over = "it"'), "checks.0.over is 'it': must be one of as it is, few"),
        (("least = 0.5", 'over = ""'), "checks.0.over is '': must be one of as it is, few"),
        (('to = "continuum"', 'to = ""'), "checks.0.to is '': must be one of continuum, f"),
        (("least = 0.5", "above = 9"), "checks.0: arm 'as it is' needs a number x"),
        (
            ("max_num_seqs = 2", "once = false"),
            "workload.programs is 6: arm 'few at once' with once = false draws its jobs from the",
        ),
        (
            ("programs = 6", "shared_prefixes = 4"),
            "workload.shared_prefixes is 4, but the jobs of arm 'as it is' share no tokens; give ",
        ),
        (
            ('recipe = "execution-note"', CONVERSATION_WITH_A_NEGATIVE_GAP),
            "workload: conversation.gap_s.number is -3: must be greater than or equal to 0",
        ),
    ],
)
def test_an_invalid_field_of_an_experiment_file_is_named(
    small: Path, change: tuple[str, str], message: str
) -> None:
    small.write_text(SMALL.replace(*change))
    code, out, err = bench("small.toml", "--out", "out")
    assert (code, out) == (2, "")
    assert message in err
    assert err.startswith("bench: small.toml: ")
    assert not Path("out").exists()


def test_arms_of_a_knee_must_have_ascending_positions(small: Path) -> None:
    text = SMALL.replace('"as it is"', '"as it is"\nx = 4').replace("least = 0.5", "above = 9")
    small.write_text(text.replace('"few at once"', '"few at once"\nx = 4'))
    with pytest.raises(InvalidInput, match="arm 'few at once' has x = 4 after 4"):
        load("small.toml")


def test_the_experiment_in_the_documentation_is_valid(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs/howto/experiments.md").read_text(encoding="utf-8")
    (tmp_path / "sample.toml").write_text(page.partition("```toml\n")[2].partition("```")[0])
    assert load(str(tmp_path / "sample.toml")).checks[0].over == "chunk 256"


def test_an_unknown_experiment_is_refused_with_the_known_names() -> None:
    known = "capacity, capacity-fig8, capacity-fig10, fig4, fig8"
    with pytest.raises(InvalidInput, match=f"named 'fig99'; .* {known}"):
        load("fig99")
    assert bench()[0] == 2
    assert bench("--all", "fig16")[0] == 2


def test_a_missing_or_irregular_experiment_file_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe.toml")
    for name, reason in (("nosuch.toml", "no such file"), ("pipe.toml", "is not a regular file")):
        with pytest.raises(InvalidInput, match=rf"^{name}: {reason}; .*\.toml"):
            load(name)


def test_a_live_engine_gets_the_policies_and_rates_but_not_the_simulated_machine() -> None:
    machine = Machine(hardware="a100-80g", model="llama-3.1-8b")
    settings = SweepSettings(policies="fcfs", jps="0.1", machine=machine)
    live = with_engine("vllm", "tiny", None)(settings)
    assert live == replace(settings, machine=Machine(engine="vllm", model="tiny"))
    assert with_engine("sim", None, "0.2")(settings) == replace(settings, jps="0.2")


def test_the_rule_of_admission_can_be_overridden(small: Path) -> None:
    small.write_text(SMALL.replace("[sweep]", '[sweep]\nadmission = "first-chunk"'))
    for option, used in (((), "first-chunk"), (("--admission", "whole-prompt"), "whole-prompt")):
        code, out, err = bench("small.toml", "--workers", "1", "--out", used, *option)
        assert code == 0, err
        setups = [line for line in out.splitlines() if "KV tokens" in line]
        # With two turns at once the sampler needs less memory, so each panel has a line.
        assert [f"{used} admission" in line for line in setups] == [True, True]
        result = json.loads(Path(used, "small/experiment.json").read_text())
        assert {setup["admission"] for setup in result["setups"]} == {used}


def test_an_experiment_that_needs_real_agents_is_reported_as_not_testable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, _ = bench("fig12", "--out", "out")
    assert code == 0
    assert mentions(out, "Not testable here", "real agents")


def test_without_vllm_experiments_that_need_it_are_not_testable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from harness.experiments import scheduler_overhead

    def no_vllm() -> None:
        raise NotInstalled("vLLM is not installed here; get it with: make vllm")

    monkeypatch.setattr(scheduler_overhead, "find_vllm", no_vllm)
    monkeypatch.chdir(tmp_path)
    code, out, _ = bench("table4", "--out", "out")
    assert code == 0
    assert mentions(out, "Not testable here", "vLLM is not installed", "make vllm")


def test_a_measurement_that_fails_in_a_child_process_is_reported_with_its_cause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from harness.experiments import scheduler_overhead

    # Without vLLM the process that measures a policy cannot import its scheduler.
    python = VllmInstallation(sys.executable, "0", cpu=True, torch=None, has_request_metrics=True)
    monkeypatch.setattr(scheduler_overhead, "find_vllm", lambda: python)
    with pytest.raises(MeasurementUnavailable, match="did not run: ModuleNotFoundError: No module"):
        scheduler_overhead.scheduler_overhead()
