"""`bench sweep --engine URL` on a server that is already running."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, chdir
from pathlib import Path

import pytest
from aiohttp import web

from harness.engines.base import resolve_engine
from harness.load.settings import Machine, SweepSettings
from harness.replay.identity import PROBE_ID
from tests.harness import in_process
from tests.harness.small import damages
from tests.lines import read_lines
from tests.live.server import Server, serving
from tests.loopback import on_loopback
from tests.sentences import mentions
from tests.sglang.server import Sglang
from tests.sglang.server import serving as sglang_serving
from tests.threaded import threaded
from tests.traces.test_token_counts import words
from traces import Message, Program, Turn
from traces.formats.native import write_programs

PROGRAMS = [
    Program(f"job-{k}", (Turn(20, 6, 0, ("ls",), None, 0.01), Turn(40, 6, 26))) for k in range(4)
]


@pytest.fixture(autouse=True)
def _cells_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the main thread of a worker process can handle SIGTERM."""
    monkeypatch.setattr("harness.engines.live_engine.end_on_sigterm", lambda: None)


def sweep(
    folder: Path, url: str, *options: str, programs: Sequence[Program] = PROGRAMS
) -> tuple[int, str, str]:
    write_programs(folder / "t.jsonl", programs)
    given = ("sweep", "--engine", url, "--traces", "t.jsonl", "--jps", "20", *options)
    with chdir(folder):
        return in_process.bench(*given, "--out", "o")


def succeeded(code: int, err: str) -> bool:
    """Whether a sweep succeeded; a busy machine may fail only the gate on client lateness."""
    failed = [line for line in err.splitlines() if line.startswith("failed:")]
    late = all(line.split(": ", 2)[2].startswith("client lateness") for line in failed)
    return code == 0 or (code == 1 and bool(failed) and late)


def lines(folder: Path) -> list[dict[str, object]]:
    return read_lines(folder / "turns.jsonl")


def test_every_turn_is_recorded_and_the_report_is_written(tmp_path: Path) -> None:
    with threaded(serving(Server(think_s=0.3))) as url:
        code, out, err = sweep(tmp_path, url, "--seeds", "1,2")
    assert succeeded(code, err), err
    assert out.startswith(f"engine {url}: a running server, m;")
    for seed in (1, 2):
        turns = lines(tmp_path / f"o/as-served_jps20_seed{seed}")
        assert len(turns) == 8
        assert {turn["device_hit_tokens"] for turn in turns} == {7}  # as the server reports
    assert (tmp_path / "o/report.html").is_file()


def test_values_that_a_server_does_not_report_are_null_and_not_zero(tmp_path: Path) -> None:
    with threaded(serving(Server(think_s=0.3, cached_tokens=None, queue_ms=None))) as url:
        code, _, err = sweep(tmp_path, url)
    assert succeeded(code, err), err
    (row,) = json.loads((tmp_path / "o/cells.json").read_text())
    assert row["jct_mean_s"] > 0
    assert (row["hit_ratio"], row["queue_mean_s"], row["preemptions"]) == (None, None, None)


def test_the_baseline_is_measured_twice_under_two_names(tmp_path: Path) -> None:
    with threaded(serving(Server(think_s=0.05))) as url:
        code, _, err = sweep(tmp_path, url, "--aa")
    assert succeeded(code, err), err
    cells = json.loads((tmp_path / "o/cells.json").read_text())
    assert {cell["variant"] for cell in cells} == {"as-served", "as-served#2"}
    assert (tmp_path / "o/as-served-2_jps20_seed1/done.json").is_file()
    answer = json.loads((tmp_path / "o/answer.json").read_text())
    assert code or answer["winners"] == ["as-served"]
    noise = "Measurement noise: as-served, measured a second time, is "
    assert code or answer["findings"][0].startswith(noise)


@pytest.mark.parametrize("option", ["--aa", "--repeats 2"])
def test_two_measurements_are_refused_in_virtual_time(option: str) -> None:
    code, _, err = in_process.bench("sweep", *option.split(), "--jps", "0.3")
    assert code == 2
    assert err.startswith(f"bench: {option}: is for live engines")


def test_each_cell_runs_several_times_and_more_repeats_are_added(tmp_path: Path) -> None:
    with threaded(serving(Server(think_s=0.05))) as url:
        for repeats in ("1", "2"):
            code, _, err = sweep(tmp_path, url, "--repeats", repeats)
            assert succeeded(code, err), err
        first = (tmp_path / "o/as-served_jps20_seed1/done.json").stat().st_mtime_ns
        was_valid = "as-served_jps20_seed1:" not in err
        code, _, err = sweep(tmp_path, url, "--repeats", "3")
        assert succeeded(code, err), err
        cells = json.loads((tmp_path / "o/cells.json").read_text())
        assert [(cell["cell"], cell["repeat"]) for cell in cells] == [
            ("as-served_jps20_seed1", 1),
            ("as-served_jps20_seed1_repeat2", 2),
            ("as-served_jps20_seed1_repeat3", 3),
        ]
        kept = (tmp_path / "o/as-served_jps20_seed1/done.json").stat().st_mtime_ns == first
        assert kept == was_valid
        code, _, err = sweep(tmp_path, url, "--repeats", "2")
    assert code == 2
    assert "repeats" in err
    answer = json.loads((tmp_path / "o/answer.json").read_text())
    assert any("One seed: the intervals" in caveat for caveat in answer["caveats"])


@pytest.mark.parametrize("keep", ["none", "shown", "turns"])
def test_a_measurement_keeps_its_turns_as_they_are_in_any_case(tmp_path: Path, keep: str) -> None:
    """It cannot be repeated, so numbers alone would not do."""
    with threaded(serving(Server(think_s=0.02))) as url:
        code, _, err = sweep(tmp_path, url, "--seeds", "1,2", "--keep", keep)
    assert succeeded(code, err), err
    for seed in (1, 2):
        files = [path.name for path in (tmp_path / f"o/as-served_jps20_seed{seed}").iterdir()]
        assert "turns.jsonl" in files
        assert not [name for name in files if name.endswith(".zst")]


def test_a_damaged_measurement_is_named_and_measured_again(tmp_path: Path) -> None:
    cell = tmp_path / "o/as-served_jps20_seed1"
    with threaded(serving(Server(think_s=0.02))) as url:
        code, _, err = sweep(tmp_path, url)
        assert succeeded(code, err), err
        for name in ("cell.json", "turns.jsonl", "done.json"):
            first = (cell / "turns.jsonl").read_bytes()
            (cell / name).write_bytes(damages(name)[-1]((cell / name).read_bytes()))
            with chdir(tmp_path):
                code, _, err = in_process.bench("report", "o")
            assert code == 1
            assert f"no result: {cell.name}: o/{cell.name}/{name}: " in err
            assert "; run the same bench sweep again" in err
            code, _, err = sweep(tmp_path, url)
            assert succeeded(code, err), err
            assert f"bench: damaged: o/{cell.name}/{name}: " in err
            assert (cell / "turns.jsonl").read_bytes() != first
            assert len(lines(cell)) == 8


def test_prompts_of_repeated_cells_share_no_prefix(tmp_path: Path) -> None:
    """The server's cache outlives a cell: equal prompts would give hits that agents do not have."""
    server = Server(think_s=0.3)
    with threaded(serving(server)) as url:
        code, _, err = sweep(tmp_path, url, "--jps", "10")
        assert succeeded(code, err), err
        first = dict(server.prompts)
        done = tmp_path / "o/as-served_jps10_seed1/done.json"
        done.unlink()
        code, _, err = sweep(tmp_path, url, "--jps", "10")
        assert succeeded(code, err), err
    assert first.keys() == server.prompts.keys()
    assert all(first[turn][:16] != server.prompts[turn][:16] for turn in first)


def test_the_prompts_for_a_built_in_model_use_only_its_vocabulary(tmp_path: Path) -> None:
    server = Server(model="tiny", think_s=0.3)
    with threaded(serving(server)) as url:
        code, _, err = sweep(tmp_path, url, "--jps", "10")
        assert succeeded(code, err), err
    first_turns = [ids for (_, turn), ids in server.prompts.items() if turn == 0]
    assert max(map(max, first_turns)) < 256


def test_a_failed_turn_is_recorded_fails_a_gate_and_gives_exit_code_1(tmp_path: Path) -> None:
    with threaded(serving(Server(think_s=0.3, faults={("job-1", 0): "500"}))) as url:
        code, _, err = sweep(tmp_path, url)
    assert code == 1
    assert mentions(err, "1 failed turn in 1 job", "500: EngineDeadError")
    assert len(lines(tmp_path / "o/as-served_jps20_seed1")) == 7


def test_the_same_command_runs_a_cell_again_that_failed_a_gate(tmp_path: Path) -> None:
    server = Server(think_s=0.3, faults={("job-1", 0): "500"})
    with threaded(serving(server)) as url:
        assert sweep(tmp_path, url)[0] == 1
        server.faults.clear()
        code, _, err = sweep(tmp_path, url)
    assert succeeded(code, err), err
    cell = tmp_path / "o/as-served_jps20_seed1"
    assert [turn["error"] for turn in lines(cell)] == [None] * 8
    assert mentions(err, f"o/{cell.name} failed a validity gate", "1 failed turn in 1 job")
    assert mentions(err, "1 invalid cell again", "bench report o")


def test_an_unreachable_url_is_refused_in_one_line(tmp_path: Path) -> None:
    code, _, err = sweep(tmp_path, "http://127.0.0.1:9")
    assert code == 2
    assert mentions(err, "--engine http://127.0.0.1:9", "[Errno 111] Connection refused")
    assert mentions(err, "check that it runs", "http://127.0.0.1:9/v1/models lists its model")
    assert len(err.splitlines()) == 1


def test_options_that_a_running_server_cannot_change_are_refused(tmp_path: Path) -> None:
    with threaded(serving(Server(think_s=0.3))) as url:
        two_policies = sweep(tmp_path, url, "--policies", "fcfs,continuum")
        reference = sweep(tmp_path, url, "--policies", "unlimited-kv")
        other_model = sweep(tmp_path, url, "--model", "n")
        tuned = sweep(tmp_path, url, "--policies", "fcfs(long_prefill=512)")
        replicas = sweep(tmp_path, url, "--replicas", "2")
    assert (two_policies[0], other_model[0], replicas[0]) == (2, 2, 2)
    assert "a running server has one scheduler" in two_policies[2]
    assert mentions(reference[2], "--policies unlimited-kv", "virtual time only")
    own = "--policies fcfs(long_prefill=512)", "its own long_prefill", "bench serve\n"
    assert mentions(tuned[2], *own)
    assert other_model[2] == f"bench: --model n: {url} serves m\n"
    instead = f"--engine {url}", "bench gateway URL1 URL2 --router NAME"
    assert mentions(replicas[2], "--replicas 2", *instead)


def serving_models(status: int, text: str) -> AbstractAsyncContextManager[str]:
    async def models(_request: web.Request) -> web.Response:
        return web.Response(status=status, text=text)

    app = web.Application()
    app.router.add_get("/v1/models", models)
    return on_loopback(app)


NAME = "a name must have 1 to 400 characters without control characters"


@pytest.mark.parametrize(
    ("listed", "complaint"),
    [
        ('{"data": []}', "/v1/models lists no model; load one"),
        ('{"data": [{"id": 5}]}', f"/v1/models lists a model named 5; {NAME}"),
        ('{"data": [{}]}', f"/v1/models lists a model named None; {NAME}"),
        (
            r'{"data": [{"id": "\u001b[31mred"}]}',
            rf"/v1/models lists a model named '\x1b[31mred'; {NAME}",
        ),
        (
            json.dumps({"data": [{"id": "m" * 401}]}),
            f"/v1/models lists a model named '{'m' * 56}...; {NAME}",
        ),
        (
            "<h1>welcome</h1>",
            "/v1/models did not return a JSON list of models; give the URL of an "
            "OpenAI-compatible server",
        ),
    ],
)
def test_a_server_without_a_usable_model_name_is_refused(listed: str, complaint: str) -> None:
    with threaded(serving_models(200, listed)) as url:
        assert in_process.bench("sweep", "--engine", url, "--jps", "1") == (
            2,
            "",
            f"bench: --engine {url}: {complaint}\n",
        )


@pytest.mark.parametrize(
    ("key", "hint"),
    [("", "set TURNSTILE_API_KEY"), ("sk-mine", "it rejected the key in TURNSTILE_API_KEY")],
)
def test_a_missing_key_and_a_refused_key_give_different_errors(
    key: str, hint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TURNSTILE_API_KEY", key)
    with threaded(serving_models(401, "")) as url:
        assert in_process.bench("sweep", "--engine", url, "--jps", "1") == (
            2,
            "",
            f"bench: --engine {url}: /v1/models answered 401; {hint}\n",
        )


def test_of_several_models_the_first_is_used_and_named() -> None:
    with threaded(serving_models(200, '{"data": [{"id": "a"}, {"id": "b"}]}')) as url:
        first, named = (
            resolve_engine(SweepSettings(machine=Machine(engine=url, model=model)))[1].describe()
            for model in (None, "b")
        )
    assert mentions(first, "server, a (first of 2", "--model)")
    assert "server, b; its" in named


MESSAGES = Message("user", "fix it"), Message("assistant", "ls"), Message("user", "a.py")
TEXT = Program(
    "text", (Turn(9, 3, 0, ("ls",)), Turn(30, 3, 12)), messages=MESSAGES, prompt_messages=(1, 3)
)


def test_lengths_that_a_tokenizer_counted_are_a_caveat_of_the_answer(tmp_path: Path) -> None:
    options = "--prompts", "text", "--tokenizer", str(words(tmp_path))
    with threaded(serving(Server(reports_usage=False))) as url:
        code, out, err = sweep(tmp_path, url, *options, programs=[TEXT])
    assert succeeded(code, err), err
    said = "The server reported no usage in 2 turns. --tokenizer counted the tokens in their text:"
    assert said in out
    turns = lines(tmp_path / "o/as-served_jps20_seed1")
    assert [turn["prompt_tokens"] for turn in turns] == [2, 2 + 1 + 3]  # "a", ".", "py"


def test_texts_of_different_cells_have_different_cache_salts_on_vllm(tmp_path: Path) -> None:
    for owner, cells in (("vllm", 2), ("somebody", 0)):
        folder, server = tmp_path / owner, Server(owned_by=owner)
        folder.mkdir()
        with threaded(serving(server)) as url:
            options = ("--prompts", "text", "--seeds", "1,2")
            code, _, err = sweep(folder, url, *options, programs=[TEXT])
        assert succeeded(code, err), err
        salts = [salt for salt in server.salts if salt is not None]
        assert len(set(salts)) == cells
        assert len(salts) == 2 * cells  # one for all turns of a cell


def test_a_running_sglang_gets_token_ids_by_its_own_api_and_begins_cells_without_kv(
    tmp_path: Path,
) -> None:
    server = Sglang(incremental=False, cache=[[1, 2, 3]])
    with threaded(sglang_serving(server)) as url:
        code, _, err = sweep(tmp_path, url, "--seeds", "1,2")
    assert succeeded(code, err), err
    assert server.flushes == [True, True]
    assert len(server.bodies) == 2 * 8
    assert {body["session_id"] for body in server.bodies} == {f"job-{k}" for k in range(4)}
    assert server.ended[0] == PROBE_ID  # which asked whether sessions can be ended
    turns = lines(tmp_path / "o/as-served_jps20_seed2")
    assert sorted(str(turn["device_hit_tokens"]) for turn in turns) == ["0"] * 4 + ["25"] * 4


def test_text_prompts_need_a_trace_with_messages(tmp_path: Path) -> None:
    with threaded(serving(Server())) as url:
        code, _, err = sweep(tmp_path, url, "--prompts", "text")
    assert code == 2
    assert mentions(err, "no messages", "--prompts text")
