"""Explains the names of schedulers on a page: a link from each name to one sentence about it.

In: the variants of `sweep.json`. Out: rows of a list, a legend, and text with links.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from servers.basics.phrasing import listed
from servers.policies.base import UNLIMITED_KV
from servers.policies.fcfs import Fcfs
from servers.records.settings import OffloadRecord
from servers.records.sweep import VariantRecord


@dataclass(frozen=True, slots=True)
class SchedulerRow:
    name: str
    anchor: str
    sentence: str
    source: str


class Schedulers:
    """The schedulers of a run, in order."""

    def __init__(self, variants: Sequence[VariantRecord], baseline: str) -> None:
        self.rows = [
            SchedulerRow(
                variant.name,
                f"scheduler-{number}",
                variant.description or "",
                variant.policy_source or "",
            )
            for number, variant in enumerate(variants, start=1)
        ]
        self._by_name = {row.name: row for row in self.rows}
        self._baseline = baseline
        self._tiers = [_tier(variant.offload) for variant in variants if variant.offload]
        self._references = {v.name: v.reference for v in variants if v.reference}
        self._unmarked = [v.name for v in variants if v.offload and "+" not in v.name]

    def linked(self, text: str) -> Markup:
        """Return a text with links in place of scheduler names. Names match as whole words:
        `continuum` does not match in `continuum+`."""
        names = sorted(self._by_name, key=len, reverse=True)
        if not names:
            return escape(text)
        words = re.compile(rf"(?<![\w+()-])(?:{'|'.join(map(re.escape, names))})(?![\w+(]|-\w)")
        parts: list[Markup] = []
        end = 0
        for match in words.finditer(text):
            parts += [escape(text[end : match.start()]), self.link(match[0])]
            end = match.end()
        return Markup("").join([*parts, escape(text[end:])])

    def link(self, name: str) -> Markup:
        row = self._by_name[name]
        link = Markup('<a class="scheduler" href="#{}" title="{}">{}</a>')
        return link.format(row.anchor, row.sentence, row.name)

    def legend(self) -> list[str]:
        """Return short explanations of the names."""
        notes = []
        if Fcfs.name in self._by_name:
            notes.append(f"{Fcfs.name} is stock vLLM")
        if self._baseline in self._by_name:
            notes.append(f"{self._baseline} is the baseline")
        if len(notes) == 2 and self._baseline == Fcfs.name:
            notes = [f"{Fcfs.name} is stock vLLM, the baseline"]
        if self._tiers:
            marks = ["+"] if len(self._unmarked) < len(self._tiers) else []
            notes.append(
                f"{listed([*marks, *self._unmarked])}: with an offload tier in {self._tiers[0]}"
            )
        if know := [name for name, why in self._references.items() if why != UNLIMITED_KV]:
            verb = "knows" if len(know) == 1 else "know"
            notes.append(f"{listed(know)} {verb} the future and cannot win")
        if have := [name for name, why in self._references.items() if why == UNLIMITED_KV]:
            verb = "has" if len(have) == 1 else "have"
            notes.append(f"{listed(have)} {verb} unlimited KV memory and cannot win")
        return notes


def _tier(offload: OffloadRecord) -> str:
    return "host memory and on SSD" if offload.ssd_gb else "host memory"
