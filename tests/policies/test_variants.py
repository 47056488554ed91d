"""Parsing of `--policies`, and errors in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from servers.basics.errors import InvalidInput, InvalidPlugin, InvalidVariant, UnknownName
from servers.policies import user_code
from servers.policies.fcfs import Fcfs
from servers.variants import ALL, ONLY_OVER_TIER, POLICIES, PROPOSED, variant, variants


def test_all_has_each_built_in_policy_once_from_stock_vllm_to_the_references() -> None:
    names = [v.name for v in variants("all")]
    assert names == list(ALL)
    named = set(POLICIES.built_in) - set(PROPOSED)
    plain = {name.removesuffix("+") if name[:-1] in ONLY_OVER_TIER else name for name in names}
    assert plain & set(POLICIES.built_in) == named
    assert (names[0], *names[-2:]) == ("fcfs", "unlimited-kv", "clairvoyant")


def test_variants_with_offload_and_the_references_are_marked() -> None:
    assert [v.name for v in variants("all") if v.offload] == [
        "lmcache", "autellix+", "infercept+", "continuum+", "mori+", "turnstile+",
    ]  # fmt: skip
    assert {v.name: v.impossible for v in variants("all") if v.reference} == {
        "unlimited-kv": "it has unlimited KV memory",
        "clairvoyant": "it knows the trace's future",
    }
    assert variant("lmcache").policy is Fcfs
    assert all(v.description and v.source for v in variants("all"))


def test_a_policy_that_needs_a_tier_is_refused_without_one() -> None:
    need = [name for name in POLICIES.built_in if "tier" in POLICIES.load(name).needs]
    assert need == list(ONLY_OVER_TIER)
    for text in ("mori", "mori(tick_s=2)"):
        with pytest.raises(InvalidVariant) as refused:
            variant(text)
        assert f"mori needs an offload tier; write {text}+ for LMCache" in str(refused.value)
    assert variant("mori(tick_s=2)+").offload == "lmcache"
    assert variant("mori+native").offload == "native"


@pytest.mark.parametrize("text", ["unlimited-kv+", "unlimited-kv(long_prefill=512)"])
def test_unlimited_kv_has_no_arguments_and_no_tier(text: str) -> None:
    with pytest.raises(InvalidVariant, match=r"without arguments and .*; write unlimited-kv$"):
        variant(text)


def test_names_keep_their_order() -> None:
    assert [v.name for v in variants("continuum, fcfs")] == ["continuum", "fcfs"]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("continum", "did you mean continuum"),
        ("continum", "known: fcfs, program-fcfs"),
        ("fcfs,", "no policy is called ''"),
        ("fcfs,autellix,fcfs", "fcfs is given twice"),
        ("all,fcfs", "fcfs is given twice"),
    ],
)
def test_unknown_and_duplicate_names_are_refused(spec: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message.replace("?", r"\?")):
        variants(spec)


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    """Write a module with the given text into the working directory; return its name."""
    name = f"policies_of_{abs(hash(request.node.name))}"
    (tmp_path / f"{name}.py").write_text(
        "from servers.policies.base import FREE, Policy, pin\n" + request.param
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


MINE = '''
class Mine(Policy):
    """Longest prompts first."""

    name = "mine"

    def rank(self, request, now_s):
        return (-request.prompt_tokens, request.id)
'''


@pytest.mark.parametrize("module", [MINE], indirect=True)
@pytest.mark.parametrize("separator", [":", "."])
def test_a_custom_policy_is_given_by_its_dotted_path(module: str, separator: str) -> None:
    plain, tiered = variants(f"{module}{separator}Mine,{module}{separator}Mine+")
    assert (plain.name, plain.offload, plain.reference) == ("mine", None, None)
    assert (tiered.name, tiered.offload) == ("mine+", "lmcache")
    assert (plain.description, plain.source) == (
        "Longest prompts first.",
        f"{module}:Mine",
    )


def broken(body: str, name: str = '    name = "mine"') -> str:
    return f"class Mine(Policy):\n{name}\n{body}\n"


FEWEST_ADMITTED = """
    admitted = 0
    def scheduled(self, r, t, n): self.admitted += 1
    def rank(self, r, t): return ((5 * r.id + self.admitted) % 4, r.id)
"""
AGES = """
    def rank(self, r, t): return (t - r.arrival_s < 300, -r.prompt_tokens, r.id)
"""


@pytest.mark.parametrize(
    ("module", "message"),
    [
        ("class Mine: pass", "derive a class from servers.policies.base.Policy"),
        ("Mine = 3", r"[a-z0-9_]+:Mine: is not a class; derive one from"),
        ("Other = 3", r"has no Mine$"),
        ("class Mines: pass", r"has no Mine; did you mean Mines\?"),
        ("import nowhere_to_be_found", "nowhere_to_be_found"),
        ("\nraise RuntimeError('no GPU')", r"RuntimeError: no GPU at .*_of_\d+.py:3; correct that"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("class Mine(Policy): pass", r'name is None: set name = "my-policy"'),
        (broken("", '    name = "a b"'), "name is 'a b'"),
        (broken("", '    name = "fcfs"'), "its name, fcfs; give the class another"),
        (broken("    def __init__(self, costs, x): pass"), r"raised TypeError.*need defaults"),
        (broken("    def __init__(self, costs): pass"), r"must call super\(\).__init__\(costs\)"),
        (broken("    reclaim_when = 'never'"), 'use "stuck" or "pressure"'),
        (broken("    def rank(self, request): return (1,)"), r"\(self, request\) does not match"),
        (broken("    async def rank(self, r, t): return (1,)"), "rank must be a plain method"),
        (broken("    def rank(self, r, t): return r.id"), "rank returned .* a tuple of numbers"),
        (broken("    def rank(self, r, t): return (r.program_id, r.id)"), "a tuple of numbers"),
        (broken("    def rank(self, r, t): return (float('nan'), r.id)"), "a tuple of numbers"),
        (broken("    def rank(self, r, t): return (r.arrival_s,)"), "ends in request.id"),
        (broken("    def rank(self, r, t): self.n = getattr(self, 'n', 0) + 1; "
                "return (self.n, r.id)"), "it must not change state"),
        (broken("    def finished(self, r, t): return 2.0"), r"finished returned 2.0.*FREE or pin"),
        (broken("    def finished(self, r, t): return pin(r.ttl)"),
         r"policies_of_\d+.py:4: Mine.finished raised AttributeError: 'Request' object has no"),
        (broken("    def __init__(self, costs):\n        raise KeyError('a')"),
         r"policies_of_\d+.py:5: Mine.__init__ raised KeyError: 'a'"),
        (broken("    def finished(self, r, t):\n        while True: pass"),
         r"policies_of_\d+.py:5: Mine.finished has not returned after 0.2 s"),
        (broken("    def finnished(self, r, t): return FREE"),
         r"policies_of_\d+.py:4: Mine.finnished is used neither .*; did you mean finished\?"),
        (broken("    def on_turn_end(self, r, t): return FREE"),
         r"Mine.on_turn_end is used neither .*; if it is a helper, name it _on_turn_end"),
        (broken("    need = ('tier',)"), "Mine.need is used neither .*; did you mean needs"),
        (broken(FEWEST_ADMITTED), "Mine.rank .* in another order after `scheduled` at"),
        (broken(AGES), "Mine.rank .* in another order after `arrived` at 4000 s"),
        (broken("    def arrived(self, r, t): r.prompt_tokens = 0"),
         "arrived changed request.prompt_tokens: a policy must not"),
        (broken("    def victim(self, running, t): return None"), "one of the requests in"),
        (broken("    def displaced(self, h, running, t): return h"), "displaced returned"),
        (broken("    def reclaim(self, pins, r, t): return None"), "an iterable of items"),
        (broken("    def reclaim(self, pins, r, t): return [1]"), "only items of `pins`"),
        (broken("    def review(self, pins, n, t): return pins"), "set reviews_pins = True"),
        (broken("    def admit(self, r, free, t): return True"), '"run", "skip" or "stop"'),
        (broken('    def admit(self, r, free, t): return "skip"'), "within an hour"),
        (broken("    def wake_s(self, t): return 'soon'"), "a time in seconds, or None"),
    ],
    indirect=["module"],
)  # fmt: skip
def test_a_policy_that_breaks_the_contract_is_refused_with_the_reason(
    module: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(user_code, "CALL_LIMIT_S", 0.2)
    with pytest.raises(InvalidPlugin, match=message):
        variants(f"{module}:Mine")


HELPER_AND_ALIAS = """
    def served(self, r): return r.output_tokens
    def ended(self, r, t): return pin(self.served(r))
    finished = ended
    weight = 4
"""


@pytest.mark.parametrize(
    "module",
    [
        broken(HELPER_AND_ALIAS),
        broken(AGES + "    def wake_s(self, t): return t + 1\n"),
        broken("    def rank(self, r, t): return (r.arrival_s - t, r.id)"),
        broken("    def rank(self, r, t): return (not r.pinned, not r.preempted, r.id)"),
    ],
    indirect=True,
)
def test_own_helpers_and_ranks_that_engines_read_again_are_accepted(module: str) -> None:
    assert [each.name for each in variants(f"{module}:Mine")] == ["mine"]


def test_any_policy_can_use_either_offload_tier() -> None:
    names = [
        (v.name, v.offload, v.policy_spec) for v in variants("static-ttl+,fcfs+native,lmcache")
    ]
    assert names == [
        ("static-ttl+", "lmcache", "static-ttl"),
        ("fcfs+native", "native", "fcfs"),
        ("lmcache", "lmcache", "fcfs"),
    ]
    with pytest.raises(InvalidVariant, match="lmcache has an offload tier already"):
        variants("lmcache+native")
    with pytest.raises(UnknownName, match="no policy is called 'nonsense"):
        variants("nonsense+native")
