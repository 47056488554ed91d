"""End-to-end measurements of vLLM in the package `aiconfigurator-core`: `silicon_sample.csv`.

In: the file of the installed package. Out: a `Row` per measurement of vLLM, and why a row cannot be
expressed in virtual time. Most rows are results of the public benchmark InferenceX (formerly
InferenceMAX); docs/design/fidelity.md says what is known of both origins and what is assumed. Times
are seconds, lengths are tokens.
"""

from __future__ import annotations

import csv
import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import resources

import numpy as np

from harness.calibrate.operator_tables import AICONFIGURATOR
from servers.admission import Admission
from servers.basics.errors import Unavailable
from servers.profiles.cpu_time import Scheduling
from servers.profiles.machines.gpus import OPERATOR_TABLES

FILE = "systems/silicon_sample.csv"
CONFIGS = "model_configs"
GPUS = {system: name for name, system in OPERATOR_TABLES.items()}
"""Names of `bench list hardware` by the file's."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A model as it was measured."""

    model: str
    """Name of `bench list models` of a model with these shapes and weights, or with `config` the
    model's name in reports."""
    config: str | None = None
    """File of a model that is not listed, in the package's folder of configs."""
    products: str | None = None
    """Format of its matrix products by the package's name, if the listed model has another."""
    dense: bool = True
    """Whether it has no experts, and weights of 16 or 8 bits."""

    @property
    def source(self) -> str:
        """The value of `--model`."""
        if self.config is None:
            return self.model
        return str(resources.files(AICONFIGURATOR.module) / CONFIGS / self.config)


CHECKPOINTS = {
    ("meta-llama/Llama-3.1-70B", "fp8"): Checkpoint("llama-3.3-70b-fp8", products="fp8_static"),
    ("nvidia/Llama-3.1-8B-Instruct-FP8", "fp8"): Checkpoint(
        "llama-3.1-8b-fp8", products="fp8_static"
    ),
    ("Qwen/Qwen3-32B", ""): Checkpoint("qwen3-32b"),
    ("openai/gpt-oss-120b", "fp4"): Checkpoint("gpt-oss-120b", dense=False),
    ("Qwen/Qwen3-32B", "fp8"): Checkpoint("qwen3-32b-fp8", "Qwen--Qwen3-32B-FP8_config.json"),
    ("Qwen/Qwen3-235B-A22B-FP8", "fp8"): Checkpoint(
        "qwen3-235b-fp8", "Qwen--Qwen3-235B-A22B-FP8_config.json", dense=False
    ),
    ("MiniMaxAI/MiniMax-M2.5", "fp8"): Checkpoint(
        "minimax-m2.5-fp8", "MiniMaxAI--MiniMax-M2.5_config.json", dense=False
    ),
    ("MiniMaxAI/MiniMax-M2.5", "fp4"): Checkpoint(
        "minimax-m2.5-fp4", "nvidia--MiniMax-M2.5-NVFP4_config.json", dense=False
    ),
    ("moonshotai/Kimi-K2.5", "int4"): Checkpoint(
        "kimi-k2.5-int4", "moonshotai--Kimi-K2.5_config.json", dense=False
    ),
    ("moonshotai/Kimi-K2.5", "fp4"): Checkpoint(
        "kimi-k2.5-fp4", "nvidia--Kimi-K2.5-NVFP4_config.json", dense=False
    ),
}
"""By the file's model and precision. Llama-3.1-70B has the shapes of Llama-3.3-70B; InferenceX
serves NVIDIA's checkpoint of it. NVIDIA's have static scales of activations."""
KV_FP8 = ("llama-3.3-70b-fp8", "minimax-m2.5-fp8", "minimax-m2.5-fp4", "kimi-k2.5-fp4")
SAME = "the same measurement as another row"
ROUNDED = "source_file=kimi-k2.5-gap-analysis.csv"
"""Its rows that can be expressed are InferenceX's, rounded to 0.01 ms."""
REQUESTS_PER_CLIENT = 10
RANGE = 0.8
"""InferenceX draws each length uniformly between this share of the nominal one and all of it."""
SEED = 0
"""InferenceX's client leaves the default seed of its generator."""
STEP_TOKENS = 8192
"""vLLM's default for its API server on GPUs with at least 70 GiB other than the A100, which the
scripts of InferenceX also give."""
SPARE_TOKENS = 1500
"""Of a step, beside the clients' tokens and one prompt, where aiconfigurator deploys vLLM
(max_num_tokens in generator/rule_plugin/benchmark/vllm.rule)."""
DATASET_ENTRIES = 100
"""Number of prompts that AIPerf sends in turn by default (--num-dataset-entries)."""
ADMITS_WHOLE_PROMPTS = (0, 19)
"""First version of vLLM that is taken to admit a prompt only if all of it fits."""


@dataclass(frozen=True, slots=True)
class Row:
    id: str = field(compare=False)
    hardware: str
    """Name of `bench list hardware`."""
    checkpoint: Checkpoint
    precision: str
    gpus: int
    clients: int
    prompt_tokens: int
    output_tokens: int
    ttft_s: float
    tpot_s: float
    engine_version: str
    """Empty if the file has none."""
    measured: str
    """Date, or empty."""
    public: bool
    """Whether it is a result of InferenceX, whose client and server settings are public."""

    @property
    def model(self) -> str:
        return self.checkpoint.model

    @property
    def judges(self) -> bool:
        """Whether it is in the half that judges; the other half may calibrate. The hash is of what
        was measured, so that two measurements of the same are in the same half."""
        what = self.hardware, self.model, self.gpus, self.clients
        text = " ".join(map(str, (*what, self.prompt_tokens, self.output_tokens)))
        return hashlib.sha256(text.encode()).digest()[0] % 2 == 1

    @property
    def admission(self) -> Admission:
        version = re.match(r"(\d+)\.(\d+)", self.engine_version)
        older = version is None or (int(version[1]), int(version[2])) < ADMITS_WHOLE_PROMPTS
        nightly = self.engine_version.startswith("nightly")
        return Admission.FIRST_CHUNK if older and not nightly else Admission.WHOLE_PROMPT

    @property
    def scheduling(self) -> Scheduling:
        """InferenceX asks for asynchronous scheduling where it is not the default. The version of
        the other rows has synchronous scheduling by default."""
        return Scheduling.ASYNC if self.public else Scheduling.SYNC

    @property
    def step_tokens(self) -> int:
        """InferenceX's scripts for MiniMax set their own. The other rows are of an evaluation of
        aiconfigurator."""
        if not self.public:
            return self.clients + self.prompt_tokens + SPARE_TOKENS
        if not self.model.startswith("minimax"):
            return STEP_TOKENS
        return 32_768 if self.hardware == "h200" else 2 * self.prompt_tokens

    @property
    def prompts(self) -> int | None:
        """Number of different prompts; None: each is sent once. One benchmark of aiconfigurator
        gives as many entries as requests (eval/benchmarks/genai_perf_runner.py), another none
        (bench_run.sh.j2). Rows do not say which, but those on H200 in the calibrating half are
        faster than all their prompts could be computed."""
        return DATASET_ENTRIES if self.hardware == "h200" and not self.public else None

    def warm_up(self) -> list[tuple[int, int]]:
        """Return the requests that the clients send before those that are measured, which matter
        only where prompts are sent again: AIPerf goes on with the next prompt after them. Rows do
        not say how many; of 0, 1 and 2 for each client, 1 has the smallest error of the time of a
        whole request in the calibrating half."""
        if self.prompts is None:
            return []
        return [(self.prompt_tokens, self.output_tokens)] * self.clients

    @property
    def kv_fp8(self) -> bool:
        """Whether the server kept KV in 8 bits: by InferenceX's scripts, or as aiconfigurator
        deployed weights in 8 bits (_get_quant_mode in sdk/task.py, January 2026)."""
        if not self.public:
            return self.precision == "fp8"
        if self.model == "gpt-oss-120b":
            return self.hardware == "b200" and self.measured >= "2025-12-05"
        return self.model in KV_FP8

    def requests(self) -> list[tuple[int, int]]:
        """Return the prompt and output tokens of each request, in the order of sending."""
        count = REQUESTS_PER_CLIENT * self.clients
        if not self.public:
            return [(self.prompt_tokens, self.output_tokens)] * count
        # The legacy generator of NumPy, with the calls of InferenceX's client in their order.
        rng = np.random.RandomState(SEED)
        prompts, outputs = (
            rng.randint(int(tokens * RANGE), tokens + 1, size=count).tolist()
            for tokens in (self.prompt_tokens, self.output_tokens)
        )
        return list(zip(prompts, outputs, strict=True))


def read_rows(
    hardware: str | None = None, model: str | None = None
) -> tuple[list[Row], dict[str, int]]:
    """Read the file of the installed package: rows that can be expressed, and the number of others
    of this GPU and model by reason. Raises Unavailable without the package."""
    try:
        file = resources.files(AICONFIGURATOR.module) / FILE
        text = file.read_text(encoding="utf-8")
    except ModuleNotFoundError:
        raise Unavailable(AICONFIGURATOR.remedy) from None
    return parse(text.splitlines(), hardware, model)


def parse(
    lines: Iterable[str], hardware: str | None = None, model: str | None = None
) -> tuple[list[Row], dict[str, int]]:
    rows: dict[Row, None] = {}
    left_out: Counter[str] = Counter()
    for fields in csv.DictReader(lines):
        if fields["backend"] != "vllm":
            continue
        if (why := next(_obstacles(fields), None)) is not None:
            left_out[why] += _is_of(fields, hardware, model)
        elif (row := _row(fields)) in rows:
            left_out[SAME] += _is_of(fields, hardware, model)
        else:
            rows[row] = None
    return list(rows), dict(+left_out)


def _is_of(fields: Mapping[str, str], hardware: str | None, model: str | None) -> bool:
    checkpoint = CHECKPOINTS.get((fields["model_path"], fields["precision"]))
    measured = GPUS.get(fields["system"]), checkpoint and checkpoint.model
    return hardware in (None, measured[0]) and model in (None, measured[1])


def _obstacles(fields: Mapping[str, str]) -> Iterator[str]:
    if fields["mode"] != "agg":
        yield "prefill and decode on separate servers"
    if fields["pp_size"] not in ("", "1"):
        yield "pipeline parallelism"
    if fields["attention_dp_size"] not in ("", "1"):
        yield "data parallelism"
    if fields["moe_ep_size"] not in ("", "0", "1"):
        yield "expert parallelism"
    if fields["moe_tp_size"] not in ("", "0", "1", fields["tp_size"]):
        yield "attention and experts on different numbers of GPUs"
    if fields["system"] not in GPUS:
        yield f"no GPU of this name: {fields['system']}"
    if (fields["model_path"], fields["precision"]) not in CHECKPOINTS:
        yield f"no model of this name: {fields['model_path']} {fields['precision']}".rstrip()
    if fields["silicon_data_source"].startswith(ROUNDED):
        yield SAME


def _row(fields: Mapping[str, str]) -> Row:
    source = fields["silicon_data_source"]
    measured = re.search(r"measured=(\d{4}-\d{2}-\d{2})", source)
    return Row(
        id=fields["id"],
        hardware=GPUS[fields["system"]],
        checkpoint=CHECKPOINTS[fields["model_path"], fields["precision"]],
        precision=fields["precision"] or "bf16",
        gpus=int(fields["tp_size"]),
        clients=int(fields["batch_size"]),
        prompt_tokens=int(fields["isl"]),
        output_tokens=int(fields["osl"]),
        ttft_s=round(float(fields["silicon_ttft_ms"]) / 1000, 9),
        tpot_s=round(float(fields["silicon_tpot_ms"]) / 1000, 9),
        engine_version=fields["backend_version"],
        measured=measured[1] if measured else "",
        public=re.match(r"db-dump/|source_file=\d{4}-\d{2}-\d{2}\.csv;", source) is not None,
    )
