"""Names of schedulers on a page: each is a link to a sentence, and a legend explains the plus."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from msgspec import convert

from reports.page.schedulers import Schedulers
from reports.page.write import write
from servers.records.sweep import VariantRecord
from tests.reports.make_run import make_run, turn, write_cell, write_sweep
from tests.sentences import mentions

DRAM = {"dram_gb": 100.0, "ssd_gb": 0.0}
FCFS = {"name": "fcfs", "description": "Stock vLLM.", "policy_source": "v3"}
CONTINUUM = {"name": "continuum", "description": "KV is kept.", "policy_source": ""}
PLUS = {"name": "continuum+", "description": "KV is kept; tier.", "offload": DRAM}
LMCACHE = {"name": "lmcache", "description": "Stock vLLM; tier.", "offload": DRAM}
REFERENCE = {"name": "clairvoyant", "description": "Knows.", "reference": "the future"}


def schedulers_of(variants: list[dict[str, Any]], baseline: str) -> Schedulers:
    return Schedulers(convert(variants, list[VariantRecord]), baseline)


def test_each_name_in_a_sentence_is_a_link_to_its_own_sentence() -> None:
    schedulers = schedulers_of([FCFS, CONTINUUM, PLUS], "fcfs")
    linked = schedulers.linked("continuum+ beats continuum, not continuum-v1 or fcfs.")
    link = '<a class="scheduler" href="#scheduler-{}" title="{}">{}</a>'
    assert linked == (
        f"{link.format(3, 'KV is kept; tier.', 'continuum+')} beats"
        f" {link.format(2, 'KV is kept.', 'continuum')}, not continuum-v1 or"
        f" {link.format(1, 'Stock vLLM.', 'fcfs')}."
    )


def test_names_and_sentences_are_text_and_never_markup() -> None:
    evil = {"name": "<b>x", "description": '"><script>'}
    text = str(schedulers_of([evil], "fcfs").linked("<i> <b>x"))
    assert text == (
        '&lt;i&gt; <a class="scheduler" href="#scheduler-1"'
        ' title="&#34;&gt;&lt;script&gt;">&lt;b&gt;x</a>'
    )


def test_the_legend_names_stock_vllm_the_baseline_the_offload_tier_and_the_reference() -> None:
    every = schedulers_of([FCFS, CONTINUUM, PLUS, LMCACHE, REFERENCE], "fcfs")
    stock, tier, reference = every.legend()
    assert stock == "fcfs is stock vLLM, the baseline"
    assert mentions(tier, "+ and lmcache", "host memory")
    assert mentions(reference, "clairvoyant", "cannot win")
    unlimited = {"name": "unlimited-kv", "reference": "unlimited KV"}
    (_, reference) = schedulers_of([FCFS, unlimited], "fcfs").legend()
    assert mentions(reference, "unlimited-kv", "unlimited KV memory", "cannot win")
    stock, baseline, tier = schedulers_of([FCFS, CONTINUUM, LMCACHE], "continuum").legend()
    assert (stock, baseline) == ("fcfs is stock vLLM", "continuum is the baseline")
    assert mentions(tier, "lmcache", "host memory")
    ssd = PLUS | {"offload": DRAM | {"ssd_gb": 500.0}}
    (_, tier) = schedulers_of([CONTINUUM, ssd], "continuum").legend()
    assert mentions(tier, "+", "host memory and on SSD")


def test_every_link_of_a_page_has_a_target(tmp_path: Path) -> None:
    make_run(tmp_path, ["fcfs", "continuum", "lmcache"], [0.05, 0.9], programs=20)
    page = write(tmp_path).path.read_text()
    for number in (1, 2, 3):
        assert f'href="#scheduler-{number}"' in page
        assert page.count(f'id="scheduler-{number}"') == 1


def test_many_schedulers_are_not_listed_on_the_first_screen_but_linked(tmp_path: Path) -> None:
    names = ["fcfs", *(f"p{k}" for k in range(12))]
    write_cell(write_sweep(tmp_path, names), "fcfs", [turn()])
    page = write(tmp_path).path.read_text()
    shown = page[page.index('<p class="names">') :].partition("</p>")[0]
    assert mentions(shown, '<a href="#schedulers">', "13")
    assert "p3" not in shown
    assert '<h2 id="schedulers">' in page
