"""Arranges spans of any dialect, and selects the model calls among them.

In: `Span`s in any order, from `otel` or `langfuse`. Out: the same spans as a tree without cycles or
copies, in order of time, and the model calls. Only the innermost of nested model spans counts, and
an agent's span that repeats the usage of its calls is not a call. Times are in Unix seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from servers.basics.errors import TraceRejected
from traces.lenient import Repairs
from traces.program import Message, Provenance

MAX_NESTED = 200
"""Only this many spans around a span count."""


class SpanKind(Enum):
    MODEL = "model"
    TOOL = "tool"
    AGENT = "agent"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class SpanUsage:
    """Recorded token counts."""

    prompt: int | None = None
    output: int | None = None
    total: int | None = None
    cached: int = 0
    cache_writes: int = 0
    reasoning: int = 0

    @property
    def cache(self) -> int:
        return self.cached + self.cache_writes


@dataclass(slots=True, eq=False)
class Span:
    id: str
    parent: str
    trace: str
    kind: SpanKind
    name: str
    """Name of the tool, or of the agent, including the agent that makes a model call."""
    start_s: float
    end_s: float
    session: str = ""
    usage: SpanUsage = SpanUsage()
    prompt: tuple[Message, ...] = ()
    """The messages of the prompt, preceded by one with the tools and other instructions."""
    answer: str = ""
    called: tuple[str, ...] = ()
    """Tools that the answer calls."""
    failed: bool = False
    provider: str = ""
    """Of the model; the model's name if the provider is not recorded."""
    answer_id: str = ""
    """The id that the provider gave the answer, or the agent the tool call."""
    kept: int | None = None
    """Number of leading prompt tokens that repeat the previous context, if recorded."""
    gap_provenance: Provenance = Provenance.MEASURED
    start_provenance: Provenance = Provenance.MEASURED


class SpanTree:
    """Spans by trace and id."""

    def __init__(self, spans: Sequence[Span], repairs: Repairs) -> None:
        self.repairs = repairs
        self.by_id: dict[tuple[str, str], Span] = {}
        for number, span in enumerate(spans):
            span = span if span.id else replace(span, id=f"span {number}")
            if (span.trace, span.id) in self.by_id:
                repairs.add("a span with the id of an earlier one: left out")
            else:
                self.by_id[span.trace, span.id] = span
        cut_cycles(self.by_id.values(), self.parent, self._cut_cycle)
        self.spans = sorted(self.by_id.values(), key=lambda span: (span.start_s, span.end_s))
        self.calls = self._calls()
        self._end_calls_before_their_tools()

    def parent(self, span: Span) -> Span | None:
        return self.by_id.get((span.trace, span.parent)) if span.parent else None

    def ancestors(self, span: Span) -> Iterator[Span]:
        """Yield the parent, its parent, and so on, up to one whose parent is not recorded."""
        ancestor = self.parent(span)
        for _ in range(MAX_NESTED):
            if ancestor is None:
                return
            yield ancestor
            ancestor = self.parent(ancestor)

    def _cut_cycle(self, span: Span, _above: Span) -> None:
        self.repairs.add("a span that is its own ancestor: its parent ignored")
        span.parent = ""

    def _calls(self) -> list[Span]:
        """Return the innermost model spans with usage or text."""
        models = [span for span in self.spans if span.kind is SpanKind.MODEL]
        if not models:
            raise TraceRejected(
                "no span of a model call, only of agents, tools or other steps; record the model "
                "client's spans too, since an agent's span has at most the sum of the tokens"
            )
        outer = {id(around) for span in models if (around := self._model_around(span))}
        calls = []
        for span in models:
            if id(span) in outer:
                self.repairs.add("a model span around another one: counted once")
            elif span.failed and not span.usage.output and not span.answer:
                self.repairs.add("a model call that failed: left out")
            elif not span.usage.prompt and not span.prompt:
                self.repairs.add("a model call with neither token counts nor text: left out")
            else:
                calls.append(span)
        if not calls:
            raise TraceRejected(
                "no model call has token counts or text; enable one of them in the instrumentation"
            )
        return calls

    def _model_around(self, span: Span) -> Span | None:
        """Return the model span around this one without an agent or tool in between."""
        for ancestor in self.ancestors(span):
            if ancestor.kind is not SpanKind.OTHER:
                return ancestor if ancestor.kind is SpanKind.MODEL else None
        return None

    def _end_calls_before_their_tools(self) -> None:
        """End a model span that includes the tools it calls at the start of the first of them."""
        calls = set(map(id, self.calls))
        for span in self.spans:
            call = self.parent(span)
            if span.kind is SpanKind.TOOL and call is not None and id(call) in calls:
                call.end_s = max(call.start_s, min(call.end_s, span.start_s))


def cut_cycles(
    spans: Iterable[Span], above: Callable[[Span], Span | None], cut: Callable[[Span, Span], object]
) -> None:
    """Call `cut` for one edge of each cycle, with the span and the one above it. Visits each span
    once."""
    checked: set[int] = set()
    for span in spans:
        path: set[int] = set()
        current: Span | None = span
        while current is not None and id(current) not in checked:
            path.add(id(current))
            upper = above(current)
            if upper is not None and id(upper) in path:
                cut(current, upper)
                break
            current = upper
        checked |= path
