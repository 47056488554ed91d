"""`--model` as the path of a config.json, a folder, or the id of a model in the cache."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from harness.engines.base import resolve_engine
from harness.load.settings import Machine, SweepSettings
from servers.basics.errors import DoesNotFit, InvalidInput, TurnstileError
from servers.profiles import MODELS, analytic_profile, model
from servers.profiles.files import notes_for, profile_for
from servers.profiles.kv_budget import gpus_for
from servers.profiles.models.files import model_name
from servers.profiles.models.listed import model_copy
from tests.profiles.test_model_config import DENSE
from tests.sentences import mentions

REVISION = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    (tmp_path / "Mine-1B").mkdir()
    (tmp_path / "Mine-1B/config.json").write_text(json.dumps(DENSE))
    return tmp_path / "Mine-1B"


def cached(root: Path, revision: str = REVISION) -> Path:
    snapshot = root / "hub/models--org--Cached-2B/snapshots" / revision
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text(json.dumps(DENSE))
    return snapshot


@pytest.mark.parametrize("path", ["Mine-1B", "Mine-1B/", "./Mine-1B/config.json", "../{}/Mine-1B"])
def test_a_folder_and_its_config_are_the_same_model(path: str, tmp_path: Path) -> None:
    found = model(path.format(tmp_path.name))
    assert (found.name, found.params) == ("Mine-1B", model("Mine-1B").params)


def test_another_file_is_named_by_its_own_name(folder: Path) -> None:
    (folder / "config.json").rename("variant.json")
    assert model("variant.json").name == "variant"


def test_a_cached_id_is_read_from_the_revision_that_main_is(tmp_path: Path) -> None:
    cached(tmp_path)
    other = cached(tmp_path, "f" * 40)
    (other / "config.json").write_text(json.dumps({**DENSE, "num_hidden_layers": 1}))
    with pytest.raises(InvalidInput, match="has several revisions of it"):
        model("org/Cached-2B")
    refs = tmp_path / "hub/models--org--Cached-2B/refs"
    refs.mkdir()
    (refs / "main").write_text(f"{'f' * 40}\n")
    found = model("org/Cached-2B")
    assert (found.name, found.layers) == ("Cached-2B", 1)


def test_a_snapshot_folder_has_the_name_of_its_id(tmp_path: Path) -> None:
    assert model_name(str(cached(tmp_path))) == "Cached-2B"


def test_quantization_may_be_in_a_file_of_its_own(folder: Path) -> None:
    full = model("Mine-1B").weight_bytes
    (folder / "hf_quant_config.json").write_text(
        json.dumps({"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8"}})
    )
    assert model("Mine-1B").weight_bytes < 0.8 * full


def test_a_copy_is_the_same_model_under_any_name(folder: Path) -> None:
    (folder / "hf_quant_config.json").write_text('{"quantization": {"quant_algo": "FP8"}}')
    copy = model_copy("Mine-1B")
    assert copy is not None
    Path("model.json").write_bytes(copy)
    assert model("model.json") == model("Mine-1B")
    assert model_copy("model.json") == copy
    assert model_copy("llama-3.1-8b") is None


def test_a_listed_models_config_may_have_its_name_and_another_config_may_not() -> None:
    Path("qwen3-8b.json").write_text(json.dumps(dict(MODELS["qwen3-8b"].config)))
    assert model("qwen3-8b.json").params == MODELS["qwen3-8b"].params
    Path("qwen3-8b.json").write_text(json.dumps(DENSE))
    with pytest.raises(InvalidInput, match=r"differs from .*, qwen3-8b"):
        model("qwen3-8b.json")


@pytest.mark.parametrize(
    ("config", "gpus"), [("llama-3.1-8b", 1), ("llama-3.1-70b", 2), ("qwen3-coder-480b-fp8", 8)]
)
def test_a_config_runs_on_the_fewest_gpus_with_room_for_it(config: str, gpus: int) -> None:
    Path("mine.json").write_text(json.dumps(dict(MODELS[config].config)))
    ours, listed = (
        analytic_profile("h100", "mine.json"),
        analytic_profile("h100", config, gpus=gpus),
    )
    assert ours.kv_blocks == listed.kv_blocks


def test_a_sweep_states_the_gpus_that_it_chose_and_their_kv_memory() -> None:
    """400 blocks of 16 tokens."""
    Path("mine.json").write_text(json.dumps(dict(MODELS["llama-3.1-70b"].config)))
    for llm, gpus in (("mine.json", "2 x h100"), ("llama-3.1-8b", "on h100")):
        machine = Machine(hardware="h100", model=llm, kv_blocks=400)
        _, engine, _ = resolve_engine(SweepSettings(policies="fcfs", machine=machine))
        assert mentions(engine.describe(), gpus, "6,400 KV tokens")


def test_the_limits_of_a_step_do_not_change_the_number_of_gpus() -> None:
    """8,192 turns need 14.7 GiB for sampling, which leaves no KV beside 15 GiB of weights."""
    Path("mine.json").write_text(json.dumps(dict(MODELS["llama-3.1-8b"].config)))
    assert gpus_for("rtx-5090", "mine.json", None) == 1
    with pytest.raises(DoesNotFit, match=r"1 x rtx-5090: .* use --gpus 2"):
        analytic_profile("rtx-5090", "mine.json", max_num_seqs=8192, step_tokens=8192)


def test_a_model_that_does_not_fit_names_machines_on_which_it_would() -> None:
    Path("mine.json").write_text(json.dumps(dict(MODELS["qwen3-coder-480b"].config)))
    with pytest.raises(DoesNotFit, match=r"8 x h200 or b200 or .* and \d others"):
        analytic_profile("h100", "mine.json")
    with pytest.raises(DoesNotFit, match=r"mine .* 1 x b200: .* use --gpus 8"):
        analytic_profile("b200", "mine.json", gpus=1)


def test_a_model_with_the_shape_of_a_listed_one_has_the_step_times_of_its_tables() -> None:
    Path("dense.json").write_text(json.dumps(dict(MODELS["llama-3.1-8b"].config)))
    ours = profile_for("h100", "dense.json")
    assert replace(ours, model="llama-3.1-8b") == profile_for("h100", "llama-3.1-8b")
    notes = notes_for("h100", "dense.json", ours)
    assert mentions(notes, "dense", "llama-3.1-8b", "operator tables")


@pytest.mark.parametrize("context", [8192, 262_144])
def test_a_longer_or_shorter_context_keeps_the_step_times_of_the_tables(context: int) -> None:
    config = {**MODELS["qwen3-30b-a3b"].config, "max_position_embeddings": context}
    Path("coder.json").write_text(json.dumps(config))
    ours = profile_for("h200", "coder.json")
    listed = profile_for("h200", "qwen3-30b-a3b")
    assert ours.max_model_len == context
    assert replace(ours, model=listed.model, max_model_len=40_960) == listed


def test_the_id_of_a_listed_model_that_is_not_cached_leads_to_its_name() -> None:
    with pytest.raises(InvalidInput, match=r"--model qwen3-coder-30b-a3b needs no file$"):
        model("Qwen/Qwen3-Coder-30B-A3B-Instruct")


def test_a_model_of_another_shape_is_analytic_and_names_the_command_for_its_tables() -> None:
    config = {**MODELS["llama-3.1-8b"].config, "num_hidden_layers": 31}
    Path("dense.json").write_text(json.dumps(config))
    ours = profile_for("h100", "dense.json")
    assert ours == analytic_profile("h100", "dense.json")
    notes = notes_for("h100", "dense.json", ours)
    assert mentions(notes[1], "no operator tables", "dense on 1 x h100", "--from aiconfigurator")
    # there are no tables of vLLM for this GPU
    ours = profile_for("rtx-4090", "dense.json", gpus=2)
    notes = notes_for("rtx-4090", "dense.json", ours, gpus=2)
    assert mentions(notes[1], "no operator tables", "dense on 2 x rtx-4090")


def test_heads_that_gpus_cannot_share_are_named_with_what_they_can() -> None:
    Path("mine.json").write_text(json.dumps({**DENSE, "num_attention_heads": 12}))
    message = "--gpus 8: mine has 12 heads and 2 KV heads, .* use 1, 2 or 4"
    with pytest.raises(InvalidInput, match=message):
        analytic_profile("h100", "mine.json", gpus=8)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[1]", "list instead of an object with fields"),
        (b"{", "not JSON: "),
        (b"\xff\xfe{", "not JSON: "),
        (b'{"hidden_size": 1' + b"0" * 5000 + b"}", "not JSON: "),
        (b"[" * 100_000, "nested too deeply"),
        (b"{}", "lacks model_type"),
        (b" " * (16 * 2**20 + 1), "larger than 16 MiB"),
    ],
)
def test_a_file_that_is_no_config_is_refused(content: bytes, message: str) -> None:
    Path("bad.json").write_bytes(content)
    with pytest.raises(InvalidInput, match=f"^bad.json: {message}"):
        model("bad.json")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("absent.json", "absent.json: no such file or directory; give the config.json of a model"),
        ("empty", "--model empty: the folder has no config.json"),
        ("org/absent", "--model org/absent: the Hugging Face cache .* has no config.json of it"),
        ("../../etc/passwd", "no such folder, and not the id of a model"),
        ("org/..", "no such folder|the folder has no config.json"),
        ("org--x/../y", "no such folder, and not the id of a model"),
        ("nul\0/x", "no such folder, and not the id of a model"),
        ("bad name/config.json", "the model's name would be 'bad name'; rename its folder"),
    ],
)
def test_a_path_that_leads_to_no_config_is_refused(name: str, message: str) -> None:
    Path("empty").mkdir()
    Path("bad name").mkdir()
    Path("bad name/config.json").write_text(json.dumps(DENSE))
    with pytest.raises(TurnstileError, match=message):
        model(name)


def test_a_revision_cannot_lead_out_of_the_cache(tmp_path: Path) -> None:
    cached(tmp_path)
    refs = tmp_path / "hub/models--org--Cached-2B/refs"
    refs.mkdir()
    (refs / "main").write_text("../../../../Mine-1B")
    assert model("org/Cached-2B").layers == DENSE["num_hidden_layers"]
    (tmp_path / f"hub/models--org--Cached-2B/snapshots/{REVISION}/config.json").unlink()
    with pytest.raises(InvalidInput, match="run hf download org/Cached-2B"):
        model("org/Cached-2B")
