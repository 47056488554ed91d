"""Makes the token counts of model calls comparable, and merges calls that were recorded twice.

In: the model calls of a `SpanTree`. Out: the calls, with prompts that include cached tokens and
outputs that include reasoning. Whether a count includes cached tokens is decided for each call, and
for its provider in the trace if the call's own counts do not show it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace

from traces.formats.shared.spans import Span, SpanKind, SpanTree
from traces.lenient import Repairs
from traces.token_counts import CHARACTERS_PER_TOKEN

SAME_S = 0.005
"""Times of a call that two instrumentations record differ by at most this much."""
TEXT_ERROR = 0.25
"""Text that differs by at most this share from a count agrees with it."""
MAX_COMPARED = 100
"""Maximum number of earlier spans with its id that a span is compared with."""


def read_once(tree: SpanTree, repairs: Repairs) -> None:
    """Leave each call of a model and of a tool once in the tree, with whole counts."""
    _complete(tree.calls, repairs)
    calls = _once(tree.calls, repairs)
    is_twice = len(calls) < len(tree.calls)
    tree.calls, spans = calls, tree.spans
    tree.spans = [s for s in spans if s.kind is not SpanKind.TOOL]
    tools: dict[tuple[str, str, str], deque[Span]] = {}
    for tool in (s for s in spans if s.kind is SpanKind.TOOL):
        key = tool.trace, tool.name, tool.answer_id
        others = tools.setdefault(key, deque(maxlen=MAX_COMPARED))
        if any(_is_same_tool(tree, other, tool, is_twice) for other in others):
            repairs.add("a tool call that was recorded twice: counted once")
            continue
        others.append(tool)
        tree.spans.append(tool)
    tree.spans.sort(key=lambda span: (span.start_s, span.end_s))


def _complete(calls: Sequence[Span], repairs: Repairs) -> None:
    """Make the counts of the calls whole."""
    by_provider: dict[tuple[str, str], list[Span]] = {}
    for call in calls:
        if call.usage.prompt is not None and call.usage.cache:
            by_provider.setdefault((call.trace, call.provider), []).append(call)
    for cached in by_provider.values():
        _add_cached_tokens(cached, repairs)
    for call in calls:
        usage, prompt, output = call.usage, call.usage.prompt or 0, call.usage.output
        hidden = (usage.total or 0) - prompt - (output or 0)
        if prompt and output is not None and hidden > 0:
            repairs.add("a total above prompt and answer: the rest counted as reasoning")
            reasoning = usage.reasoning + hidden
            call.usage = replace(usage, output=output + hidden, reasoning=reasoning)


def _add_cached_tokens(calls: Sequence[Span], repairs: Repairs) -> None:
    """Add the cached tokens to the prompts of calls of one provider, if they are not in them."""
    excludes = any(call.usage.cache > (call.usage.prompt or 0) for call in calls)
    shown_by_text = not excludes and _text_includes_all(calls)
    for call in calls:
        usage = call.usage
        prompt, output = usage.prompt or 0, usage.output or 0
        if usage.cache <= prompt and usage.total == prompt + output:
            continue
        adds_up = usage.total == prompt + usage.cache + output
        if shown_by_text:
            if adds_up:
                repairs.add("a total with the cached tokens twice, as the text shows: ignored")
                call.usage = replace(usage, total=None)
        elif excludes or adds_up:
            repairs.add("prompt tokens without the cached ones: these added")
            call.usage = replace(usage, prompt=prompt + usage.cache)


def _text_includes_all(calls: Iterable[Span]) -> bool:
    """Return whether the prompts' texts are as long as their counts without the cached tokens."""
    texts = prompts = whole = 0.0
    for call in calls:
        if not call.prompt:
            return False
        texts += sum(len(message.content) for message in call.prompt) / CHARACTERS_PER_TOKEN
        prompts += call.usage.prompt or 0
        whole += (call.usage.prompt or 0) + call.usage.cache
    return abs(texts - prompts) <= TEXT_ERROR * prompts < whole - texts


def _once(calls: Sequence[Span], repairs: Repairs) -> list[Span]:
    """Return each call once, although two instrumentations recorded it: with one id of the answer
    and counts that agree, or in one trace at the same times with the same counts."""
    kept: list[Span] = []
    by_answer: dict[str, deque[Span]] = {}
    by_counts: dict[tuple[str, int | None, int | None], Span] = {}
    for call in calls:
        counts = call.trace, call.usage.prompt, call.usage.output
        # Some servers number their answers, so that other calls may have this id.
        answers = by_answer.get(call.answer_id, ()) if call.answer_id else ()
        same = next((other for other in answers if _is_same_answer(other, call)), None)
        other = by_counts.get(counts)
        if same is None and other is not None and _are_one(other, call):
            same = other
        if same is None:
            kept.append(call)
            same = by_counts[counts] = call
        else:
            repairs.add("a model call that was recorded twice: counted once")
            same.prompt = same.prompt or call.prompt
            same.answer, same.called = same.answer or call.answer, same.called or call.called
            same.name, same.session = same.name or call.name, same.session or call.session
        if call.answer_id and same not in answers:
            by_answer.setdefault(call.answer_id, deque(maxlen=MAX_COMPARED)).append(same)
    return kept


def _is_same_answer(a: Span, b: Span) -> bool:
    """Return whether two calls with the same answer id are one. `a` began first."""
    if b.start_s > a.end_s:
        return False
    prompts = _agree(a.usage.prompt, a.usage.cache, b.usage.prompt, b.usage.cache)
    outputs = _agree(a.usage.output, a.usage.reasoning, b.usage.output, b.usage.reasoning)
    if not prompts or not outputs:
        return False
    return a.trace == b.trace or bool(a.usage.prompt and b.usage.prompt and _are_nested(a, b))


def _agree(a: int | None, part_of_a: int, b: int | None, part_of_b: int) -> bool:
    """Return whether two counts may be of the same tokens, if each may lack or repeat its part. An
    unknown count agrees with any."""
    if not a or not b:
        return True
    of_a = {a - part_of_a, a, a + part_of_a}
    return any(count > 0 and count in of_a for count in (b - part_of_b, b, b + part_of_b))


def _is_same_tool(tree: SpanTree, a: Span, b: Span, is_twice: bool) -> bool:
    """Return whether two spans of one tool, with one id or none, are of one call. Some models
    number the tool calls of each answer, so calls of two agents may have one id."""
    if is_twice and _are_near(a, b):
        return True
    return bool(a.answer_id) and _are_nested(a, b) and _caller(tree, a, b) is _caller(tree, b, a)


def _caller(tree: SpanTree, tool: Span, other: Span) -> Span | None:
    """Return the agent or the tool, other than `other`, around a tool call."""
    callers = SpanKind.AGENT, SpanKind.TOOL
    return next((s for s in tree.ancestors(tool) if s.kind in callers and s is not other), None)


def _are_one(a: Span, b: Span) -> bool:
    if a.usage.prompt is None or (a.answer_id and b.answer_id):
        return False
    return _are_near(a, b)


def _are_near(a: Span, b: Span) -> bool:
    return abs(a.start_s - b.start_s) <= SAME_S and abs(a.end_s - b.end_s) <= SAME_S


def _are_nested(a: Span, b: Span) -> bool:
    """Return whether one of two spans is within the other."""
    begins_s, ends_s = a.start_s - b.start_s, a.end_s - b.end_s
    a_within_b = begins_s >= -SAME_S and ends_s <= SAME_S
    return a_within_b or (begins_s <= SAME_S and ends_s >= -SAME_S)
