"""Measures the CPU time that vLLM's API server takes for a request, outside the engine's steps.

    .venv-vllm/bin/python -m tests.bench.request_cpu_time [REQUESTS]

Needs a vLLM for CPUs (`make vllm`). Requests for one streamed token are sent one at a time to a
server with a tiny model, as token ids, text and chat messages, in a new random order in each round.
The text is this repository's, and so is that on which the tokenizer is trained. Each prompt was
sent before, so that the engine has computed it. Times are CPU milliseconds of the server's process,
without that of the engine, which is a process of its own: HTTP, validation, chat template,
tokenizer, transfer to the engine, and the answer. Time that the server waits is not CPU time. The
last column is the CPU time of the hashes of a prompt's blocks of 16 tokens, which the engine's
process computes when the request arrives.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

LENGTHS = (16, 1024, 8192, 32_768)
KINDS = ("ids", "text", "chat")
BLOCK_TOKENS = 16
WARM_UP = 2
VOCABULARY = 32_000
ROOT = Path(__file__).parents[2]


def main(requests: int) -> None:
    from servers.processes.port import Port
    from servers.vllm.models.tiny_model import TINY_CONFIG, write_model

    text = repository_text()
    tokenizer = trained_tokenizer(text)
    print(f"tokenizer alone\t{_tokenizer_us(tokenizer, text):.2f} µs per token")

    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder) / "tiny", {**TINY_CONFIG, "vocab_size": VOCABULARY + 320})
        tokenizer.save(f"{folder}/tiny/tokenizer.json")
        reserved = Port()
        port = reserved.number
        command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
        command += [
            "--model",
            f"{folder}/tiny",
            "--port",
            str(port),
            "--load-format",
            "dummy",
            "--enforce-eager",
        ]
        command += ["--max-model-len", "65536", "--disable-uvicorn-access-log"]
        environment = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"}
        server = subprocess.Popen(
            command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            url = f"http://127.0.0.1:{port}"
            _wait_until_ready(url, server)
            _report(_measure(url, f"{folder}/tiny", server.pid, requests, tokenizer, text))
        finally:
            server.terminate()
            server.wait()
            reserved.close()


def _wait_until_ready(url: str, server: subprocess.Popen[bytes]) -> None:
    while True:
        if server.poll() is not None:
            raise RuntimeError(f"vLLM ended with code {server.returncode}")
        try:
            with urlopen(f"{url}/health", timeout=5):  # noqa: S310
                return
        except (URLError, OSError):
            time.sleep(1)


def repository_text() -> str:
    files = sorted(path for path in ROOT.glob("[a-z]*/**/*.py") if path.is_file())
    return "".join(path.read_text(encoding="utf-8") for path in files)


def trained_tokenizer(text: str) -> Any:
    """Return a byte-level BPE tokenizer of the usual kind."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|begin|>", "<|end|>", "<|pad|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=special,
        initial_alphabet=alphabet,
        show_progress=False,
    )
    tokenizer.train_from_iterator([text], trainer)
    return tokenizer


def _tokenizer_us(tokenizer: Any, text: str) -> float:
    part = text[:200_000]
    begin_ns = time.thread_time_ns()
    encoded = tokenizer.encode(part)
    return (time.thread_time_ns() - begin_ns) / 1e3 / len(encoded.ids)


def _measure(
    url: str, model: str, pid: int, requests: int, tokenizer: Any, text: str
) -> dict[tuple[str, int], list[float]]:
    found: dict[tuple[str, int], list[float]] = {
        (kind, tokens): [] for kind in KINDS for tokens in LENGTHS
    }
    ids = tokenizer.encode(text[: 8 * max(LENGTHS)]).ids
    rng = random.Random(0)
    for number in range(-WARM_UP, requests):
        for kind, tokens in rng.sample(list(found), len(found)):
            path, prompt = _prompt(kind, ids[:tokens], tokenizer)
            body = {"model": model, "max_tokens": 1, "stream": True, **prompt}
            begin_ns = _cpu_ns(pid)
            request = Request(  # noqa: S310
                f"{url}/v1/{path}",
                json.dumps(body).encode(),
                {"Content-Type": "application/json"},
            )
            with urlopen(request, timeout=600) as answer:  # noqa: S310
                answer.read()
            if number >= 0:
                found[kind, tokens].append((_cpu_ns(pid) - begin_ns) / 1e6)
    return found


def _prompt(kind: str, ids: list[int], tokenizer: Any) -> tuple[str, dict[str, Any]]:
    """Return the path of the endpoint, and the prompt as it takes it."""
    if kind == "ids":
        return "completions", {"prompt": ids}
    text = tokenizer.decode(ids)
    if kind == "text":
        return "completions", {"prompt": text}
    return "chat/completions", {"messages": [{"role": "user", "content": text}]}


def _cpu_ns(pid: int) -> int:
    """Return the CPU time of all threads of a process."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads)


def _report(found: dict[tuple[str, int], list[float]]) -> None:
    for (kind, tokens), each in found.items():
        low, _, high = statistics.quantiles(each, n=4)
        hashes = f"{_hash_ms(tokens):.2f}" if kind == "ids" else ""
        print(
            f"{kind}\t{tokens} tokens\t{statistics.median(each):.2f} ms "
            f"({low:.2f} to {high:.2f})\t{hashes}"
        )


def _hash_ms(tokens: int) -> float:
    from servers.vllm.virtual_time.stepping import request

    times = []
    for number in range(20):
        prompt = [number % 256] * tokens
        begin_ns = time.thread_time_ns()
        request(str(number), prompt, 1, 0.0, BLOCK_TOKENS)
        times.append((time.thread_time_ns() - begin_ns) / 1e6)
    return statistics.median(times)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2] or ["100"]))
