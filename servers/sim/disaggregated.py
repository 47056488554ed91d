"""Engines that compute prompts and engines that decode, under one clock.

In: turns, as `Fleet`. Each goes to a prefill engine, which computes its prompt and one token that
nobody sees. It then goes to a decode engine, which fetches the blocks that its own prefix cache
lacks, computes the prompt's last token again and generates the answer: vLLM's NixlConnector does
the same. The prefill engine keeps the turn's blocks until the transfer has ended. Each kind of
engine is behind a router of its own, of the same class.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from servers.routers.runner import BuildRouter
from servers.sim.engine import OnEnd
from servers.sim.fleet import BuildEngine, Fleet
from servers.sim.front import Front
from servers.sim.links import Link
from servers.sim.sequence import Sequence as Served
from servers.sim.sequence import Submission
from servers.sim.settings import Transfer


class DisaggregatedFleet(Fleet):
    def __init__(
        self,
        build_router: BuildRouter,
        decode: Sequence[BuildEngine],
        prefill: Sequence[BuildEngine],
        transfer: Transfer,
        *,
        on_end: OnEnd,
    ) -> None:
        """In the fleet, the decode engines have the first indices."""
        self._decoders = len(decode)
        super().__init__(build_router, [*decode, *prefill], on_end=on_end, behind=self._decoders)
        self._prefills = Front(
            build_router,
            self.engines[self._decoders :],
            self._usage,
            first=self._decoders,
            tree=len(self.engines),
            on_sent=self._interrupt,
        )
        self._fronts.append(self._prefills)
        block_bytes = self.profile.block_tokens * self.profile.kv_bytes_per_token
        self._links = [Link(block_bytes, transfer.bytes_per_s, transfer.latency_s) for _ in prefill]
        self._whole: dict[Served, Served] = {}
        """By turn in a prefill engine: the turn as it was submitted."""

    def _arrive(self, served: Served) -> None:
        sent = served.submission
        prompt = Submission(
            sent.program_id,
            (),
            sent.prompt_tokens,
            1,
            sent.is_last,
            future=sent.future,
            path_on=sent.path_on,
            job_id=sent.job_id,
        )
        prefilled = Served(prompt, served.since_ps)
        prefilled.sends_kv = True
        self._whole[prefilled] = served
        self._prefills.arrive(prefilled)

    def _ended(self, served: Served) -> None:
        whole = self._whole.pop(served, None)
        if whole is None:
            super()._ended(served)
            return
        self._prefills.ended(served)
        whole.prefilled = served
        whole.fetch = partial(self._fetch, served)
        whole.since_ps = self.now_ps
        self._front.arrive(whole)

    def _fetch(self, prefilled: Served, blocks: int, now_ps: int) -> int:
        """Send blocks of a turn from its prefill engine; return when they have arrived."""
        index = prefilled.replica
        link, engine = self._links[index - self._decoders], self.engines[index]
        done_ps = max(link.read(blocks, now_ps), now_ps + 1)
        engine.free_sent(prefilled, done_ps)
        self._wake(index, done_ps)
        return done_ps
