"""Lists in --hardware and --model: the same programs on each machine, a run folder for each."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from small import GPU, contents, programs

from harness.engines.sim import resolve_profile, sim_engine
from harness.load.settings import Machine, SweepSettings
from harness.load.settings_file import read_settings
from tests.harness.in_process import bench
from tests.lines import read_lines
from tests.profiles.test_measured import measured
from tests.sentences import mentions
from traces import Program, Turn
from traces.formats.native import write_programs

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 2048,
    "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32,
    "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 128256,
    "max_position_embeddings": 131072, "torch_dtype": "bfloat16", "tie_word_embeddings": True,
}  # fmt: skip
LOAD = (
    "--once",
    "--traces",
    "three.jsonl",
    "--policies",
    "continuum",
    "--jps",
    "0.5",
    "--workers",
    "1",
)
LIST = ("sweep", *LOAD, "--hardware", "a100-80g,h100", "--model", "llama-3.1-8b,gemma-3-12b")
FOLDERS = [
    "a100-80g_gemma-3-12b", "a100-80g_llama-3.1-8b", "h100_gemma-3-12b", "h100_llama-3.1-8b",
]  # fmt: skip
CELL = "continuum_jps0.5_seed1"
TOOK = "took 1 finished cell with the same settings from"


@pytest.fixture(scope="module")
def listed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a sweep over a list."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("listed"))
        write_programs(Path("three.jsonl"), programs(3))
        run(*LIST, "--out", "all")
        return Path("all").absolute()


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_programs(tmp_path / "three.jsonl", programs(3))
    return tmp_path


def run(*command: str) -> str:
    code, out, err = bench(*command)
    assert code == 0, err
    return out + err


def refused(*command: str) -> str:
    code, out, err = bench(*command)
    assert (code, out, err.count("\n")) == (2, "", 1), err
    return err


def read(path: Path | str) -> Any:
    return json.loads(Path(path).read_text())


def cells(folder: Path | str) -> dict[str, bytes]:
    """Return the files of the cells of a run folder."""
    return {name: data for name, data in contents(Path(folder)).items() if "_seed" in name}


def test_each_pair_of_hardware_and_model_is_a_run_with_the_same_programs_and_arrivals(
    listed: Path,
) -> None:
    assert sorted(path.name for path in listed.iterdir() if path.is_dir()) == FOLDERS
    turns = []
    for name in FOLDERS:
        cell = read(listed / name / CELL / "cell.json")
        assert f"{cell['hardware']}_{cell['model']}" == name
        lines = read_lines(listed / name / CELL / "turns.jsonl")
        records = sorted(lines, key=lambda turn: turn["program_id"])
        fields = ("program_id", "prompt_tokens", "output_tokens", "gap_s")
        first = [r["scheduled_at_s"] for r in records if r["turn"] == 0]
        turns.append((first, [tuple(r[field] for field in fields) for r in records]))
    assert turns[1:] == turns[:-1]


def test_a_run_in_a_list_equals_a_sweep_on_that_machine_and_each_reuses_the_cells_of_the_other(
    listed: Path,
) -> None:
    run("sweep", *LOAD, "--hardware", "h100", "--out", "runs/one")
    alone = cells("runs/one")
    assert f"{TOOK} runs/one\n" in run(*LIST, "--out", "runs/all")
    gemma = ("--hardware", "a100-80g", "--model", "gemma-3-12b")
    assert f"{TOOK} runs/all/a100-80g_gemma-3-12b" in run("sweep", *LOAD, *gemma, "--out", "two")
    assert alone == cells(listed / "h100_llama-3.1-8b")


def test_only_programs_that_fit_every_machine_run_on_any_of_them() -> None:
    size = 100_000  # tokens: more than an L4 holds with Llama-3.1-8B, less than an H100
    long = Program("long", (Turn(size, 10, 0),))
    write_programs(Path("three.jsonl"), (*programs(2), long))
    run("sweep", *LOAD, "--hardware", "l4,h100", "--out", "two")
    small, large = (read(f"two/{gpu}_llama-3.1-8b/sweep.json") for gpu in ("l4", "h100"))
    limits = [run["profile"]["max_model_len"] for run in (small, large)]
    assert limits[0] < size < limits[1]
    assert small["workload"] == large["workload"]
    (left,) = large["workload"]["left_out"]
    assert left["program_id"] == "long"
    assert "llama-3.1-8b on l4 can hold here" in left["reason"]


def test_the_overview_has_the_number_of_gpus_and_names_analytic_step_times() -> None:
    out = run("sweep", *LOAD, "--hardware", "h100,l4", "--gpus", "2", "--out", "all")
    counts = [(m["hardware"], m["gpus"]) for m in read("all/members.json")["members"]]
    assert counts == [("h100", 2), ("l4", 2)]
    page = " ".join(Path("all/report.html").read_text().split())
    assert "<li>2 machines: 2 x h100 and 2 x l4</li>" in page
    assert "\n2 x h100: " in out
    assert {row["gpus"] for row in read("all/cells.json")} == {2}
    for text in (page, out):
        assert mentions(text, "analytic", "for 2 x l4", "from operator-table profiles")
    alike = run("sweep", *LOAD, "--hardware", "h100,b200", "--out", "alike")
    assert "analytic" not in alike


def test_the_answer_has_the_number_of_programs_that_are_repeated_for_those_left_out() -> None:
    long = Program("long", (Turn(2_000_000, 10, 0),))
    write_programs(Path("three.jsonl"), (*programs(3), long))
    for number, machines in enumerate(("h100", "h100,l40s")):
        more = ("--hardware", machines, "--programs", "20", "--out", str(number))
        out = run("sweep", *LOAD, *more)
        page = " ".join(Path(f"{number}/report.html").read_text().split())
        for text in (out, page):
            assert "Left out: 1 program; the first, long: " in text
            assert "3 distinct programs, repeated to 20." in text


def test_two_models_of_the_same_name_are_refused_and_named() -> None:
    for folder in ("one", "two"):
        Path(folder, "ours").mkdir(parents=True)
        Path(folder, "ours", "config.json").write_text(json.dumps(CONFIG))
    message = refused("sweep", *LOAD, "--model", "one/ours,two/ours", "--out", "x")
    assert mentions(message, "--model one/ours,two/ours", "a100-80g_ours", "rename one")


def test_sweep_toml_has_the_lists_and_repeats_the_run_from_any_place(folder: Path) -> None:
    Path("my-gpu.toml").write_text(GPU)
    command = ("sweep", *LOAD, "--traces", str(folder / "three.jsonl"))
    run(*command, "--hardware", "h100,my-gpu.toml", "--out", "all")
    toml = Path("all/sweep.toml").read_text()
    assert 'hardware = [\n    "h100",\n    "my-gpu_llama-3.1-8b/gpu.toml",\n]' in toml
    assert 'hardware = "gpu.toml"' in Path("all/my-gpu_llama-3.1-8b/sweep.toml").read_text()
    Path("my-gpu.toml").unlink()
    Path("elsewhere").mkdir()
    shutil.move("all", "elsewhere/moved")
    run("sweep", "elsewhere/moved/sweep.toml", "--out", "again")
    for file in ("sweep.toml", "my-gpu_llama-3.1-8b/sweep.toml", "my-gpu_llama-3.1-8b/gpu.toml"):
        assert Path("again", file).read_bytes() == Path("elsewhere/moved", file).read_bytes()
    assert cells("again") == cells("elsewhere/moved")


def test_sweep_toml_of_each_machine_has_its_own_price_and_repeats_its_run() -> None:
    command = ("sweep", *LOAD, "--hardware", "a100-80g,h100", "--price", "a100-80g=1.25,h100=2")
    run(*command, "--out", "all")
    assert 'price = "a100-80g=1.25,h100=2"' in Path("all/sweep.toml").read_text()
    one = Path("all/a100-80g_llama-3.1-8b/sweep.toml")
    assert 'price = "1.25"' in one.read_text()
    assert "finished already" in run("sweep", str(one), "--out", str(one.parent))


def test_a_config_json_may_be_an_element_and_is_copied() -> None:
    Path("ours.json").write_text(json.dumps(CONFIG))
    run("sweep", *LOAD, "--model", "llama-3.1-8b,ours.json", "--out", "all")
    Path("ours.json").unlink()
    toml = Path("all/sweep.toml").read_text()
    assert 'model = [\n    "llama-3.1-8b",\n    "a100-80g_ours/model.json",\n]' in toml
    run("sweep", "all/sweep.toml", "--out", "again")
    assert cells("again") == cells("all")
    assert Path("again/sweep.toml").read_text() == toml


def test_a_folder_can_get_more_machines_and_resumes_unfinished_ones(listed: Path) -> None:
    shutil.copytree(listed, "all")
    Path("all/h100_gemma-3-12b", CELL, "done.json").unlink()
    more = [word.replace("a100-80g,h100", "a100-80g,h100,l40s") for word in LIST]
    out = run(*more, "--out", "all")
    assert "3 of 6 cells were finished already" in out
    fewer = refused(*LIST, "--out", "all")
    assert mentions(fewer, "--out all", "machines or bursts are")
    one = refused("sweep", *LOAD, "--hardware", "h100", "--out", "all")
    assert mentions(one, "--out all", "several machines")


def test_a_profile_file_runs_only_the_model_that_it_was_measured_with() -> None:
    profile = measured().model_copy(update={"model": "gemma-3-12b"})
    Path("here.json").write_text(profile.model_dump_json())
    for own in ("here.json", "here.json,h100"):
        message = refused(
            "sweep", *LOAD, "--hardware", own, "--model", "llama-3.1-8b,llama-3.1-70b"
        )
        assert mentions(message, "here.json", "gemma-3-12b", "add gemma-3-12b to --model")
    lists = ("--hardware", "here.json,h100", "--model", "gemma-3-12b,llama-3.1-8b")
    run("sweep", *LOAD, *lists, "--out", "all")
    pairs = [(m["hardware"], m["model"]) for m in read("all/members.json")["members"]]
    assert pairs == [
        (profile.machine, "gemma-3-12b"), ("h100", "gemma-3-12b"), ("h100", "llama-3.1-8b"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("speculate", "hardware", "note"),
    [
        ("ngram:3,accept=0.5", "h100", "; drafts take no time"),
        ("eagle3:3,accept=0.5,draft=0.05", "h100", "a draft is given as 5.0% of a step"),
        ("eagle3:3,accept=0.5", "h100", "a draft is inferred as 9.9% of a step"),
        ("eagle3:3,accept=0.5,draft=0", "here.json", "as measured, without the KV of draft layers"),
    ],
)
def test_a_note_says_whether_the_time_and_memory_of_drafts_is_known(
    speculate: str, hardware: str, note: str
) -> None:
    Path("here.json").write_text(measured().model_dump_json())
    machine = Machine(hardware=hardware, speculate=speculate)
    engine = sim_engine(SweepSettings(machine=machine), [], resolve_profile(machine))
    assert engine.profile_notes[-1].endswith(note)


def test_a_measured_model_that_cannot_draft_is_refused_if_it_is_listed() -> None:
    profile = measured().model_copy(update={"model": "gemma-3-12b"})
    Path("here.json").write_text(profile.model_dump_json())
    mtp = ("--speculate", "mtp:1,accept=0.8,draft=0.1")
    message = refused("sweep", *LOAD, "--hardware", "here.json", *mtp)
    assert "gemma-3-12b has no MTP layers" in message


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--hardware h100,,l4", "--hardware h100,,l4: has an empty name; remove a comma"),
        ("--hardware h100,h100", "--hardware h100,h100: h100 is given twice; give it once"),
        ("--hardware h100,h10", "--hardware h10: unknown; did you mean h100?"),
        (
            "--hardware h100,l4 --engine vllm",
            "--engine vllm: runs on one machine, and --hardware, --model or --burst is a list;",
        ),
        (
            "--model llama-3.1-8b,gemma-3-12b --engine http://127.0.0.1:1",
            "--engine http://127.0.0.1:1: runs on one machine, and",
        ),
    ],
)
def test_an_impossible_list_is_refused_in_one_line(options: str, message: str) -> None:
    assert message in refused("sweep", *LOAD, *options.split(), "--out", "x")
    assert not Path("x").exists()


def test_all_machines_on_which_a_model_does_not_fit_are_named_before_anything_runs() -> None:
    machines = ("--hardware", "h100,l4,rtx-6000-24g", "--gpus", "1")
    message = refused("sweep", *LOAD, *machines, "--model", "llama-3.1-70b", "--out", "x")
    for gpu in ("h100", "l4", "rtx-6000-24g"):
        assert f"llama-3.1-70b does not fit on 1 x {gpu}: " in message
    assert mentions(message, "--hardware or --model")
    assert not Path("x").exists()


@pytest.mark.parametrize("option", ["--hardware", "--model"])
def test_commands_for_one_machine_refuse_a_list_and_an_empty_name(option: str) -> None:
    for command in (("sweep", "--one", "--policies", "fcfs", "--jps", "1"), ("profile", "--show")):
        names = "h100,l4" if option == "--hardware" else "llama-3.1-8b,gemma-3-12b"
        listed = refused(*command, option, names)
        assert mentions(listed, f"{option} {names}", "only bench sweep")
        assert mentions(refused(*command, option, ""), option, "is empty")


def test_a_settings_file_has_a_list_or_a_text_with_commas() -> None:
    text = 'traces = ["three.jsonl"]\npolicies = "fcfs"\njps = "0.5"\n'
    Path("list.toml").write_text(f'{text}hardware = ["h100", "l4"]\n')
    Path("text.toml").write_text(f'{text}hardware = "h100,l4"\n')
    assert read_settings(Path("list.toml")) == read_settings(Path("text.toml"))
    for value, why in (("[]", "is an empty list"), ('["a,b"]', "must be a list of names")):
        Path("bad.toml").write_text(f"{text}hardware = {value}\n")
        assert why in refused("sweep", "bad.toml")


def test_the_overview_names_the_fastest_scheduler_of_each_machine_and_links_to_its_report() -> None:
    Path("my-gpu.toml").write_text(GPU)
    more = ("--policies", "fcfs,continuum", "--hardware", "h100,my-gpu.toml")
    out = run("sweep", *LOAD, *more, "--out", "all")
    page = Path("all/report.html").read_text()
    for label in ("h100", "my-gpu"):
        name = f"{label}_llama-3.1-8b"
        assert f'href="{name}/report.html">{label}</a>' in page
        assert f"\n{label}: " in out
        own = Path(f"all/{name}/report.html").read_text()
        assert 'href="../report.html"' in own
        assert f'href="../{name}/report.html" aria-current="page">{label}</a>' in own
    assert "<script" not in page
    rows = read("all/cells.json")
    assert {(row["hardware"], row["model"]) for row in rows} == {
        ("h100", "llama-3.1-8b"), ("my-gpu", "llama-3.1-8b"),
    }  # fmt: skip
    assert {row["cell"].partition("/")[0] for row in rows} == {
        "h100_llama-3.1-8b", "my-gpu_llama-3.1-8b",
    }  # fmt: skip
    before = contents(Path("all"))
    run("report", "all")
    assert contents(Path("all")) == before


def test_capacities_are_searched_on_each_machine_and_the_overview_has_them() -> None:
    load = ("--traces", "three.jsonl", "--policies", "fcfs,continuum", "--seeds", "1")
    machines = ("--hardware", "a100-80g,h100", "--kv-blocks", "200", "--workers", "1")
    condition = ("--fail-unless", "capacity(fcfs) > 0")
    out = run("sweep", *load, *machines, "--out", "all", *condition)
    assert mentions(out, "searching how many agents", "ttft_p95<=5s (--")
    assert 'arrivals = "agents"\n' in Path("all/sweep.toml").read_text()
    overview = Path("all/report.html").read_text()
    assert "All capacities" in overview
    for machine in ("a100-80g", "h100"):
        answer = read(f"all/{machine}_llama-3.1-8b/answer.json")
        found = answer["capacities"][answer["winners"][0]]
        assert found["kind"] == "found"
        assert f'<td class="best">{found["agents"]:.3g}</td>' in overview
        assert f"\n{machine}: capacity(fcfs) > 0: holds," in out


def test_other_commands_take_the_folder_of_several_machines_or_name_the_runs_in_it() -> None:
    two = ("sweep", *LOAD, "--hardware", "a100-80g,h100")
    run(*two, "--out", "runs/one")
    run(*two, "--out", "runs/two")
    assert "are identical" in run("compare", "runs/one", "runs/two", "--identical")
    assert run("open") in ("runs/one/report.html\n", "runs/two/report.html\n")
    assert run("open", "runs/one") == "runs/one/report.html\n"
    run("export", "runs/one", "--format", "csv", "--cell", f"h100_llama-3.1-8b/{CELL}")
    line = Path("runs/one/export/jobs.csv").read_text().splitlines()[1]
    assert line.startswith(f"h100_llama-3.1-8b/{CELL},h100,llama-3.1-8b,continuum,")
    assert "llama-3.1-8b on h100, sim, operator-table profile, " in run("list", "runs")
    for command in (
        ("compare", "runs/one", "runs/two/h100_llama-3.1-8b"),
        ("compare", "runs/one", "--save", "b.json.gz"),
        ("report", "runs/one", "--gantt", CELL),
    ):
        message = refused(*command)
        assert mentions(message, "runs/one", "several runs")


def test_compare_tests_the_machines_that_both_sweeps_have_and_names_the_others() -> None:
    run("sweep", *LOAD, "--hardware", "h100,l4", "--out", "one")
    shutil.copytree("one", "two")
    document = read("two/members.json")
    document["members"][1]["hardware"] = "l40s"
    Path("two/members.json").write_text(json.dumps(document))
    shown = run("compare", "one", "two")
    assert "in one run only: l4\n" in shown
    assert "in one run only: l40s\n" in shown
    (sweep,) = Path("two").glob("h100_*/sweep.json")
    other = json.loads(sweep.read_text())
    other["profile"]["kv_blocks"] += 1
    sweep.write_text(json.dumps(other))
    message = refused("compare", "one", "two", "--markdown", "c.md")
    assert mentions(message, "different settings", "profile: kv_blocks")
    assert mentions(Path("c.md").read_text(), "Valid", "1 of 1 cell")
    assert "are identical" in run("compare", "one", "two", "--allow-different", "profile")
    document["members"][0]["hardware"] = "b200"
    Path("two/members.json").write_text(json.dumps(document))
    assert "have no machine in common" in refused("compare", "one", "two")


def test_the_report_of_a_gpu_file_has_its_numbers_its_cost_and_the_notes_of_the_profile() -> None:
    Path("MY-GPU.TOML").write_text(GPU)
    run("sweep", *LOAD, "--hardware", "MY-GPU.TOML", "--gpus", "2", "--out", "one")
    sweep, (cell,) = read("one/sweep.json"), read("one/cells.json")
    # Two GPUs at 1.2 USD an hour, for the time that three jobs took.
    assert cell["usd_per_job"] == pytest.approx(
        2 * 1.2 / 3600 / cell["throughput_jobs_per_s"], rel=1e-9
    )
    assert sweep["profile_notes"]
    page = " ".join(Path("one/report.html").read_text().split())
    assert "<dt>GPUs</dt><dd>2</dd>" in page
    assert mentions(page, "48 GiB", "1.5 TB/s", "BF16 300 TFLOP/s")
    assert mentions(page, "<dt>Price of a GPU</dt>", "1.2 USD per hour", "GPU file")
    assert sweep["profile_notes"][0][1:] in page
    assert "<code>bench sweep sweep.toml --out FOLDER</code>" in page


def test_the_report_has_the_errors_of_a_profile_files_fit() -> None:
    profile = measured().model_copy(update={"gpus": 2})
    Path("here.json").write_text(profile.model_dump_json())
    run("sweep", *LOAD, "--hardware", "here.json", "--out", "one")
    notes = read("one/sweep.json")["profile_notes"]
    assert read(f"one/{CELL}/cell.json")["gpus"] == 2
    assert notes[0].startswith(f"step times were measured: {profile.engine}, ")
    worst = f"{profile.decode_errors.worst:.1%} ({profile.decode_errors.worst_at})"
    assert any(note.endswith(worst) for note in notes)
    page = Path("one/report.html").read_text()
    assert profile.decode_errors.worst_at in page
    assert "USD per job" not in page


@pytest.mark.parametrize(
    ("field", "value", "problem"),
    [
        ("folder", "../other", "members[0].folder"),
        ("hardware", "a\nb", "members[0].hardware"),
        ("model", None, "members[0].model"),
    ],
)
def test_a_foreign_folder_with_an_invalid_document_is_refused(
    field: str, value: str | None, problem: str
) -> None:
    Path("bad").mkdir()
    entry = {"folder": "a", "hardware": "h", "model": "m", field: value}
    document = {"format": "turnstile-members-1", "members": [entry]}
    Path("bad/members.json").write_text(json.dumps(document))
    assert f"bad/members.json: {problem}" in refused("report", "bad")
