"""Measurements over HTTP of a server with known times."""

from __future__ import annotations

import asyncio
from statistics import median

import pytest

from harness.calibrate.probe import Target
from harness.calibrate.step_times import CalibrationTimes, measure, step_seconds
from harness.engines.url import describe
from servers.basics.errors import MeasurementFailed, Unavailable
from tests.live.server import Server, serving
from tests.sentences import mentions

TOKENS = 1000


def measured(server: Server, *, longest: int = 300, kv_tokens: int = TOKENS) -> CalibrationTimes:
    async def go() -> CalibrationTimes:
        async with serving(server) as url:
            target = Target(url, "m", range(256), longest, kv_tokens, 2048, max_num_seqs=8)
            return await asyncio.to_thread(measure, target, 60.0, lambda *_: None)

    return asyncio.run(go())


def test_measured_times_equal_those_of_the_server() -> None:
    times = measured(Server(think_s=0.05, chunk_s=0.01, chunk_tokens=1, cached_tokens=0))
    assert [p.tokens for p in times.prefill] == [32, 128]
    assert all(len(p.seconds) == 3 for p in times.prefill)
    assert all(0.05 <= median(p.seconds) < 2.0 for p in times.prefill)  # on a busy machine
    # 4 prompts of 128 + 48 tokens take 704 of the 900 usable tokens; 8 would take 1408.
    assert [(d.batch, round(d.context) // 128) for d in times.decode] == [(1, 1), (2, 1), (4, 1)]
    assert all(0.01 <= median(d.seconds) < 0.4 for d in times.decode)  # an answer takes 0.48 s
    batches, *singles = times.left_out
    assert mentions(batches, "8 at 128 tokens", "KV memory")
    for tokens, left_out in zip((2048, 8192, 32768), singles, strict=True):
        assert mentions(left_out, f"1 at {tokens} tokens", "context")


def test_a_step_time_is_the_mean_over_at_least_eight_tokens_however_they_are_chunked() -> None:
    # One token per 10 ms, one chunk every 30 ms; the last chunk is outside of the window.
    stream = [(0.03 * k, 3 * k) for k in range(1, 12)] + [(2.0, 40)]
    seconds = step_seconds([stream], begin_s=0.03, end_s=0.33)
    assert seconds == pytest.approx([0.01] * 3)  # 9 tokens each: the first chunk with 8 or more


def test_streams_that_do_not_overlap_give_no_step_time() -> None:
    early, late = [(0.01 * k, k) for k in range(1, 10)], [(1 + 0.01 * k, k) for k in range(1, 10)]
    assert step_seconds([early, late], begin_s=1.01, end_s=0.09) == []


def test_if_answers_are_too_short_for_a_step_time_longer_ones_are_requested_if_they_fit() -> None:
    server = Server(chunk_s=0.03, chunk_tokens=48, cached_tokens=0)
    # 48 tokens are one chunk; 96 are two, so one step time, at a context of 128 + (48 + 96) / 2.
    assert measured(server, longest=300).decode[0].context == 200
    short = measured(server, longest=180)
    assert short.decode == []
    assert mentions(short.left_out[0], "1 at 128 tokens", "never all in decode")


def test_a_cached_prompt_is_not_measured_as_prefill() -> None:
    with pytest.raises(MeasurementFailed, match=r"7 tokens .* were cached"):
        measured(Server(cached_tokens=7))


@pytest.mark.parametrize("fault", ["500", "no stream", "cut", "one short"])
def test_a_failed_request_ends_the_measurement_with_one_line(fault: str) -> None:
    with pytest.raises(MeasurementFailed, match="a prompt of 64 tokens failed: ") as failed:
        measured(Server(faults={("profile", 0): fault}))
    assert "\n" not in str(failed.value)


def test_a_url_without_vllm_is_reported() -> None:
    with pytest.raises(Unavailable, match=r"--url http://127\.0\.0\.1:9: not a vLLM server"):
        describe("http://127.0.0.1:9")
