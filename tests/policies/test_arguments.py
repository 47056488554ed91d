"""Arguments of a policy: `continuum(k=50, reclaim_when=pressure)`."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from policy_turns import COSTS, turn

from servers.basics.errors import InvalidInput, InvalidPlugin, InvalidVariant
from servers.basics.text import slug
from servers.policies.arguments import arguments_text, check_arguments, parse_arguments
from servers.policies.base import Costs, Policy
from servers.policies.continuum import Continuum
from servers.policies.infercept import Infercept
from servers.sim import Limits
from servers.variants import POLICIES, make_policy, variant, variants
from tests.sentences import mentions


class Typed(Policy):
    """A policy with one parameter of each type that can be written as text."""

    name = "typed"

    def __init__(
        self,
        costs: Costs,
        *,
        whole: int = 1,
        number: float = 1.0,
        flag: bool = False,
        text: str = "",
        maybe: int | None = 3,
        several: Sequence[float] = (),
        untyped=None,
    ) -> None:
        super().__init__(costs)


def values(text: str) -> dict[str, Any]:
    return dict(check_arguments(Typed, parse_arguments(text, "typed"), "typed"))


def test_values_are_literals_of_the_types_in_the_signature() -> None:
    given = "whole=-3, number=2, flag=true, text=word, maybe=none, several=[1, 2.5]"
    assert values(given) == {
        "flag": True, "maybe": None, "number": 2.0, "several": (1.0, 2.5), "text": "word",
        "whole": -3,
    }  # fmt: skip
    assert values("text='two words'") == {"text": "two words"}
    assert values("untyped=3.5") == {"untyped": 3.5}
    assert values(" ") == {}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("whole=2.5", "typed: whole must be a whole number, not 2.5"),
        ("whole=true", "typed: whole must be a whole number, not true"),
        ("number=fast", "typed: number must be a number, not fast"),
        ("flag=1", "typed: flag must be true or false, not 1"),
        ("text=3", "typed: text must be a text, not 3"),
        ("maybe=x", "typed: maybe must be a whole number or none, not x"),
        ("several=[1, x]", "typed: several must be a number, not"),
        ("several=1", "typed: several must be a list, each item of which is a number, not 1"),
        ("wole=1", "typed: wole is not an argument of typed; did you mean whole? (known: whole, "),
        ("costs=1", "typed: costs is not an argument of typed ("),
        ("self=1", "typed: self is not an argument of typed ("),
        ("3", "typed: 3 has no name; write arguments as name=value"),
        ("whole=1, whole=2", "typed: whole is given twice"),
        ("whole=1e999", "typed: whole: 1e309 is neither a number"),
        (f"whole={2**70}", f"typed: whole: {2**70} is neither a number"),
        ("text='a\\nb'", "typed: text: 'a\\nb' is neither a number"),
        ("whole=len('x')", "typed: whole: len('x') is neither a number"),
        ("whole=1+1", "typed: whole: 1 + 1 is neither a number"),
        ("text=f'{1}'", "typed: text: f'{1}' is neither a number"),
        ("**whole", "typed: write arguments as name=value"),
        ("whole=", "typed: write arguments as name=value"),
        ("whole=1)(number=2", "typed: write arguments as name=value"),
        ("whole=" + "(" * 300, "typed: write arguments as name=value"),
        ("text='\\d'", "typed: write arguments as name=value"),
    ],
)
def test_invalid_arguments_are_refused_in_one_line(given: str, message: str) -> None:
    with pytest.raises(InvalidPlugin) as raised:
        values(given)
    assert str(raised.value).startswith(message)
    assert "\n" not in str(raised.value)


class TakesAny(Policy):
    def __init__(self, costs: Costs, weight: float = 1.0, **options: Any) -> None:
        super().__init__(costs)


def test_a_policy_with_a_parameter_for_all_keywords_takes_every_name() -> None:
    given = parse_arguments("depth=3, weight=2", "any")
    assert check_arguments(TakesAny, given, "any") == (("depth", 3), ("weight", 2.0))
    with pytest.raises(InvalidPlugin, match=r"any: weight .* number, not fast"):
        check_arguments(TakesAny, {"weight": "fast"}, "any")


@pytest.mark.parametrize("number", [2**53, -(2**53)])
def test_numbers_up_to_those_that_json_keeps_exact_are_allowed(number: int) -> None:
    assert values(f"whole={number}") == {"whole": number}
    beyond = number + (1 if number > 0 else -1)
    with pytest.raises(InvalidPlugin, match="is neither a number"):
        values(f"whole={beyond}")


@pytest.mark.parametrize(
    ("value", "text"),
    [("if", "'if'"), ("true", "'true'"), ("é", "'é'"), ("a b", "'a b'"), ("word", "word"),
     (True, "true"), (1, "1"), (None, "none"), ((1, ("x",)), "[1,[x]]")],
)  # fmt: skip
def test_text_has_quotes_where_it_would_not_be_read_as_a_word(value: Any, text: str) -> None:
    assert arguments_text([("a", value)]) == f"(a={text})"


def test_a_name_that_is_like_no_argument_gets_the_list_without_a_guess() -> None:
    with pytest.raises(InvalidPlugin) as raised:
        values("zzzzzz=1")
    known = "whole, number, flag, text, maybe, several, untyped"
    assert mentions(str(raised.value), "typed", "zzzzzz", f"known: {known}")


@pytest.mark.parametrize("given", ["flag=-true", "flag=-True", "whole=-none"])
def test_words_have_no_sign(given: str) -> None:
    with pytest.raises(InvalidPlugin, match="is neither a number"):
        values(given)


literals = st.recursive(
    st.booleans() | st.none() | st.integers(-(2**53), 2**53)
    | st.floats(-(2**53), 2**53)
    | st.text(max_size=20).filter(str.isprintable),
    lambda inner: st.lists(inner, max_size=3).map(tuple),
    max_leaves=4,
)  # fmt: skip


@given(st.dictionaries(st.sampled_from(["a", "b_c", "k"]), literals))
def test_the_canonical_text_is_parsed_as_the_same_values(arguments: dict[str, Any]) -> None:
    text = arguments_text(sorted(arguments.items()))
    parsed = parse_arguments(text[1:-1], "x")
    assert parsed == arguments
    assert arguments_text(sorted(parsed.items())) == text


@given(st.text(max_size=40))
def test_any_text_is_a_valid_variant_or_refused(text: str) -> None:
    with suppress(InvalidInput):
        variants(f"continuum({text})")


def test_a_variants_name_is_the_same_however_its_arguments_are_written() -> None:
    spellings = [
        "continuum(k=50,reclaim_when=pressure)+",
        "continuum( reclaim_when = 'pressure' , k = 50 )+",
        " continuum(reclaim_when=pressure,k=0x32)+",
    ]
    assert {variant(text).name for text in spellings} == {spellings[0]}
    assert variant("continuum()").name == "continuum"
    assert variant("continuum-v1(alpha=1)").name == "continuum-v1(alpha=1.0)"


def test_commas_between_parentheses_separate_arguments() -> None:
    text = "fcfs, continuum(k=50, reclaim_when=pressure), autellix(quanta_s=[1,2], beta=5)+native"
    assert [v.name for v in variants(text)] == [
        "fcfs",
        "continuum(k=50,reclaim_when=pressure)",
        "autellix(beta=5.0,quanta_s=[1.0,2.0])+native",
    ]


def test_a_variant_with_the_same_arguments_is_a_duplicate() -> None:
    with pytest.raises(InvalidInput, match=r"continuum\(k=50\) is given twice"):
        variants("continuum(k=50),continuum(k=25),continuum( k=50 )")


def test_a_name_with_arguments_makes_a_safe_folder() -> None:
    name = variant("continuum(k=50, reclaim_when=pressure)+").name
    assert slug(name) == "continuum-k-50-reclaim-when-pressure-+"


def test_a_name_too_long_for_a_folder_is_refused() -> None:
    with pytest.raises(InvalidVariant, match=r"characters, .* at most 120"):
        variant(f"autellix(quanta_s=[{','.join(['1'] * 60)}])")


@pytest.mark.parametrize(
    "text", ["continuum(k=1", "continuum)", "continuum(k=1)x", "continuum+(k=1)", "continuum++"]
)
def test_a_malformed_variant_is_reported_with_the_valid_form(text: str) -> None:
    with pytest.raises(InvalidVariant, match=r"write NAME or NAME\(argument=value"):
        variant(text)


def test_every_policy_takes_settings_of_the_engine_which_only_the_engine_gets() -> None:
    tuned = variant("continuum(watermark=0, k=50, long_prefill=512)+")
    assert tuned.name == "continuum(k=50,long_prefill=512,watermark=0.0)+"
    assert (tuned.arguments, tuned.policy_spec) == ((("k", 50),), "continuum(k=50)")
    limits = tuned.limited(Limits(64, 1000, long_prefill_adaptive=True, long_prefill=7))
    assert limits == Limits(64, 1000, long_prefill=512, long_prefill_adaptive=True)
    assert variant("fcfs").limited(limits) == limits


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fcfs(long_prefill=0.5)", "long_prefill must be a whole number, not 0.5"),
        ("fcfs(long_prefill=-1)", "--policies fcfs(long_prefill=-1): --long-prefill -1: must be"),
        ("fcfs(watermark=1)", "--policies fcfs(watermark=1.0): --watermark 1: must be at least 0"),
    ],
)
def test_invalid_settings_of_the_engine_are_refused_with_the_variant(
    text: str, message: str
) -> None:
    with pytest.raises(InvalidInput, match=re.escape(message)):
        variant(text).limited(Limits())


class OwnWatermark(Policy):
    """Has an argument with the name of a setting of the engine."""

    name = "own-watermark"

    def __init__(self, costs: Costs, watermark: int = 3) -> None:
        super().__init__(costs)
        self.watermark = watermark


def test_an_argument_of_a_policy_is_none_of_the_engine() -> None:
    mine = variant(f"{__name__}:OwnWatermark(watermark=5)")
    assert (mine.arguments, mine.limits) == ((("watermark", 5),), ())


def test_arguments_reach_the_policy() -> None:
    instance = make_policy(variant("continuum(k=50, reclaim_when=pressure)"), COSTS)
    assert isinstance(instance, Continuum)
    assert (instance.model.k, instance.reclaim_when) == (50, "pressure")
    assert make_policy(variant("continuum"), COSTS).reclaim_when == "stuck"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("continuum(k=-1)", "k must be at least 0, not -1"),
        ("continuum(window=0)", "window must be at least 1, not 0"),
        ("static-ttl(window=0)", "window must be at least 1, not 0"),
        ("continuum-v1(delta=1)", "delta between 0 and 1"),
        ("autellix(beta=0)", "quanta_s and beta must be above 0"),
        ("fcfs(k=1)", "k is not an argument of fcfs (known: long_prefill, "),
        ("fcfs(long_prefil=512)", "not an argument of fcfs; did you mean long_prefill? (known: "),
        ("fcfs(speculate='ngram:3')", "speculate is not an argument of fcfs (known: long_prefill"),
        ("infercept(reclaim_when=never)", "must be overdue or stuck or pressure, not never"),
    ],
)
def test_values_that_a_policy_rejects_are_refused_before_anything_runs(
    text: str, message: str
) -> None:
    with pytest.raises(InvalidPlugin) as raised:
        variant(text)
    assert message in str(raised.value)


def test_infercept_can_order_its_queue_by_turns() -> None:
    early_program = turn("a", at=5.0, program_at=0.0)
    early_turn = turn("b", at=4.0, program_at=3.0, pinned=True)
    by_program, by_turn = Infercept(COSTS), Infercept(COSTS, queue_order="turn")
    late_pinned = turn("c", at=9.0, program_at=8.0, pinned=True)
    assert by_program.rank(late_pinned, 9.0) < by_program.rank(early_program, 9.0)
    assert by_turn.rank(early_turn, 9.0) < by_turn.rank(early_program, 9.0)
    assert by_turn.rank(early_program, 9.0) < by_turn.rank(late_pinned, 9.0)
    preserved_first = Infercept(COSTS, queue_order="preserved_turn")
    early_evicted = turn("d", at=4.5, program_at=1.0)
    waiting = [early_program, late_pinned, early_evicted, early_turn]
    ordered = sorted(waiting, key=lambda request: preserved_first.rank(request, 9.0))
    assert ordered == [early_turn, late_pinned, early_evicted, early_program]


def test_continuum_can_estimate_from_other_turns() -> None:
    """After tool calls of 2 s two turns return, one to a pin and one to evicted KV."""

    def after(policy: Continuum) -> Continuum:
        for program, pinned in (("a", True), ("b", False)):
            policy.arrived(first := turn(program, at=0.0), 0.0)
            policy.scheduled(first, 0.0, 0)
            policy.finished(first, 1.0)
            next_turn = turn(program, index=1, at=3.0, program_at=0.0, pinned=pinned, last=True)
            policy.arrived(next_turn, 3.0)
            policy.scheduled(next_turn, 7.0 if pinned else 5.0, 0)
            policy.finished(next_turn, 8.0)
        return policy

    assert after(Continuum(COSTS)).model.delays.mean_s == 2.0
    assert after(Continuum(COSTS, queue_delays="all")).model.delays.mean_s == 3.0
    assert len(after(Continuum(COSTS)).model.all_tools) == 2
    assert len(after(Continuum(COSTS, tool_times="evicted")).model.all_tools) == 1
    assert after(Continuum(COSTS)).model.turns.average == 2.0
    assert after(Continuum(COSTS, turn_counts="evicted")).model.turns.average == 1.5


def test_the_documentation_lists_every_argument_of_every_policy() -> None:
    page = (Path(__file__).parents[2] / "docs/reference/policies.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("|")]
    for name in POLICIES.built_in:
        _self, _costs, *others = inspect.signature(POLICIES.load(name).__init__).parameters
        for argument in others:
            assert any(f"`{name}`" in row and f"`{argument}`" in row for row in rows), argument
