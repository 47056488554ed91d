"""`bench experiment`: files with sweeps and claims, runs that resume, and verdicts."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from harness.experiments.definition import load, names, plans, with_engine
from harness.load.settings import Machine, SweepSettings
from servers.admission import Admission
from servers.errors import InvalidExperiment, InvalidInput
from tests.harness import in_process

ROWS = "fig4 fig8 fig9 fig10 fig11 fig12 fig13 fig14 fig15 fig16 note-gpus note-pins note-policy"
"""The rows of SEEDS §4, without tables 4 and 5."""

SMALL = """
title = "Small"
source = "nobody, Figure 0"
claim = "Continuum never loses."

[sweep]
hardware = "a100-80g"
model = "llama-3.1-8b"
policies = "fcfs,continuum"
jps = "0.1"

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


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.toml").write_text(SMALL)
    return tmp_path / "small.toml"


def bench(*arguments: str) -> tuple[int, str, str]:
    return in_process.bench("experiment", *arguments)


def test_every_row_of_the_sources_is_listed_in_their_order() -> None:
    assert [n for n in names() if not n.startswith(("open-", "table"))] == ROWS.split()
    assert {"table4", "table5"} < set(names())
    code, out, _ = bench("list")
    assert code == 0
    assert [line.split("\t")[0] for line in out.splitlines()] == names()


@pytest.mark.parametrize("name", names())
def test_each_experiment_file_has_valid_plans_and_claims_about_them(
    name: str, tmp_path: Path
) -> None:
    experiment = load(name)
    assert experiment.claim
    plan_by_arm = {arm.name: plan for arm, plan in plans(experiment, tmp_path)}
    policies = {v.name for plan in plan_by_arm.values() for v in plan.variants}
    for check in experiment.checks:
        assert {check.of, check.to or check.of} <= policies, check.says
        assert set(check.arms) <= set(plan_by_arm), check.says
        loads = {cell.jps for plan in plan_by_arm.values() for cell in plan.cells()}
        assert set(check.loads) <= loads, check.says


@pytest.mark.parametrize("name", [name for name in names() if load(name).is_sweep])
def test_each_sweep_uses_the_admission_rule_and_scheduling_of_the_engine_of_its_source(
    name: str, tmp_path: Path
) -> None:
    """All sources used vLLM 0.7 or 0.10, which admit a turn when its first chunk fits, and whose
    GPU waits for the scheduler."""
    experiment = load(name)
    assert "vLLM 0.10.2" in experiment.source_engine or "vLLM 0.7.2" in experiment.source_engine
    for _, plan in plans(experiment, tmp_path):
        assert plan.settings.machine.admission is Admission.FIRST_CHUNK
        assert plan.engine.sweep_json()["limits"]["admission"] == "first-chunk"
        assert plan.engine.sweep_json()["scheduling"] == "sync"


@pytest.mark.usefixtures("small")
def test_a_run_writes_a_page_and_a_verdict_and_a_second_run_reuses_its_cells() -> None:
    code, out, err = bench("run", "small.toml", "--out", "out")
    assert code == 0, err
    assert "small: Small\n  Reproduced: never slower than twice (" in out
    result = json.loads(Path("out/small/experiment.json").read_text())
    assert result["verdict"].startswith("Reproduced")
    assert [f["holds"] for f in result["findings"]] == [True]
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
    code, again, err = bench("run", "small.toml", "--out", "out")
    assert (code, again) == (0, out)
    assert err.count("2 of 2 cells were finished already") == 2


def test_a_failed_claim_is_a_result_and_not_an_error(small: Path) -> None:
    small.write_text(SMALL.replace("least = 0.5", "least = 3.0"))
    code, out, _ = bench("run", "small.toml", "--out", "out")
    assert code == 0
    assert "Not reproduced: “never slower than twice” does not hold, ours 1.0" in out


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
        (('recipe = "execution-note"', ""), "workload: recipe: missing; add it"),
        (('"execution-note"', '"nope"'), "workload.recipe is 'nope': must be one of swe-bench, "),
        (("[sweep]", "[sweep"), "small.toml"),
        (('title = "Small"', "title = 5"), "title is 5: must be a valid string"),
        (("programs = 6", "programs = 0"), "workload: programs is 0: must be greater"),
        (('policies = "fcfs,', 'policies = "fifo,'), "sweep.policies: no policy is called 'fifo'"),
        (('jps = "0.1"', 'jps = "abc"'), "sweep.jps: --jps 'abc': "),
        (("least = 0.5", 'metric = "nope"'), "checks.0.metric is 'nope': must be 'jct_mean_s', "),
        (('of = "fcfs"', 'of = "zzz"'), "checks.0.of is 'zzz': must be one of continuum, fcfs\n"),
        (('to = "continuum"', 'to = "all"'), "checks.0.to is 'all': must be one of continuum, f"),
        (("least = 0.5", 'arms = ["it"]'), "checks.0.arms is 'it': must be one of as it is, few"),
        (("least = 0.5", "loads = [0.1, 7]"), "checks.0.loads is 7.0: must be one of 0.1\n"),
    ],
)
def test_an_invalid_field_of_an_experiment_file_is_named(
    small: Path, change: tuple[str, str], message: str
) -> None:
    small.write_text(SMALL.replace(*change))
    code, out, err = bench("run", "small.toml", "--out", "out")
    assert (code, out) == (2, "")
    assert message in err
    assert err.startswith("bench: small.toml: ")
    assert not Path("out").exists()


def test_an_unknown_experiment_is_refused_with_the_known_names() -> None:
    with pytest.raises(
        InvalidExperiment, match=r"named 'fig99'; give one of fig4, fig8, fig9, fig10"
    ):
        load("fig99")
    assert bench("run")[0] == 2
    assert bench("run", "--all", "fig16")[0] == 2


def test_a_missing_or_irregular_experiment_file_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe.toml")
    for name, reason in (("nosuch.toml", "no such file"), ("pipe.toml", "is not a regular file")):
        with pytest.raises(InvalidInput, match=f"^{name}: {reason}; give a .toml file or a name"):
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
        code, out, err = bench("run", "small.toml", "--workers", "1", "--out", used, *option)
        assert code == 0, err
        assert out.count(f"{used} admission") == 1
        result = json.loads(Path(used, "small/experiment.json").read_text())
        assert {setup["admission"] for setup in result["setups"]} == {used}


def test_an_experiment_that_needs_real_agents_is_reported_as_not_testable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, _ = bench("run", "fig12", "--out", "out")
    assert code == 0
    assert "Not testable here: it needs real agents" in out


def test_without_vllm_experiments_that_need_it_are_not_testable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from harness.experiments import special_kinds as experiment_kinds
    from servers.errors import VllmNotInstalled

    def no_vllm() -> None:
        raise VllmNotInstalled("vLLM is not installed here; get it with: make vllm")

    monkeypatch.setattr(experiment_kinds, "find_vllm", no_vllm)
    monkeypatch.chdir(tmp_path)
    code, out, _ = bench("run", "table4", "--out", "out")
    assert code == 0
    assert "Not testable here: vLLM is not installed here; get it with: make vllm" in out
