"""Parses `--fail-unless`: a comparison of capacities and JCTs of a run.

In: text such as `capacity(continuum) >= 1.3 * capacity(fcfs)`. Out: a condition, which
`reports.answer.held` evaluates. The text is parsed as a Python expression of numbers, arithmetic,
comparisons, `and`, `or`, `not` and the functions of `FUNCTIONS`; nothing else is accepted, and
nothing is executed. Names of variants need no quotes: `capacity(continuum+)`.
"""

from __future__ import annotations

import ast
import operator
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from reports.loads import RATES, Ladder
from servers.basics.errors import InvalidInput
from servers.basics.nearest import did_you_mean
from servers.basics.phrasing import listed
from servers.basics.text import quoted

OPTION = "--fail-unless"
FUNCTIONS = ("capacity", "mean_jct", "p50_jct", "p90_jct", "p95_jct", "p99_jct")
SYNTAX = (
    "use for example 'capacity(continuum) >= 1.3 * capacity(fcfs)' or "
    "'mean_jct(continuum, at=0.3) <= 60'"
)
ARITHMETIC: Mapping[type[ast.AST], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
COMPARISONS: Mapping[type[ast.AST], Callable[[float, float], bool]] = {
    ast.GtE: operator.ge,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.Lt: operator.lt,
}
MAX_CHARACTERS = 500
CALL = re.compile(r"\b([a-z]\w*)\s*\(\s*(?=[^\s\"'(),])")
"""A call of a function, up to its first argument, which has no quotes."""


@dataclass(frozen=True, slots=True)
class Condition:
    text: str
    tree: ast.expr

    @property
    def calls(self) -> list[ast.Call]:
        return [node for node in ast.walk(self.tree) if isinstance(node, ast.Call)]

    @property
    def needs_capacity(self) -> bool:
        return any(function_of(call) == "capacity" for call in self.calls)

    @property
    def depends_on_unit(self) -> bool:
        """Whether a capacity is compared with, or added to, a number other than 0."""
        alike: list[tuple[ast.expr, ...]] = []
        """Expressions that must have the same unit."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Compare):
                alike.append((node.left, *node.comparators))
            elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
                alike.append((node.left, node.right))
        return any(len({_degree(s) for s in each if not _is_zero(s)}) > 1 for each in alike)

    def check(
        self, variants: Sequence[str], amounts: Sequence[float | None], ladder: Ladder = RATES
    ) -> None:
        """Raise InvalidInput for variants that are not in the sweep, and for loads under which it
        does not run all variants."""
        for call in self.calls:
            name = variant_of(call)
            if name not in variants:
                hint = did_you_mean(name, variants, f"use {listed(variants, 'or')}")
                raise _invalid(self.text, f"{name} is not a policy of this sweep{hint}")
            at = load_of(call)
            if at is not None and at not in amounts:
                # A number of agents is whole.
                remedy = f"add --{(ladder if at.is_integer() else RATES).option} {at:g}"
                raise _invalid(self.text, f"no cell runs at {ladder.label(at)}; {remedy}")


def parse_condition(text: str) -> Condition:
    """Raises InvalidInput."""
    if len(text) > MAX_CHARACTERS:
        raise _invalid(text, f"longer than {MAX_CHARACTERS} characters; {SYNTAX}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)  # such as an unknown escape in a name
            tree = ast.parse(_quoted_names(text).strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise _invalid(text, f"not an expression; {SYNTAX}") from None
    condition = Condition(text, tree)
    if not isinstance(tree, ast.Compare | ast.BoolOp) and not (
        isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.Not)
    ):
        raise _invalid(text, f"has no comparison; {SYNTAX}")
    _check(text, tree)
    return condition


def _quoted_names(text: str) -> str:
    """Put the first argument of each function, which may contain brackets, in quotes."""
    parts: list[str] = []
    end = 0
    for match in CALL.finditer(text):
        if match.start() < end:
            continue  # Inside the name of a variant, such as continuum(k=50).
        stop = _end_of_argument(text, match.end())
        name = text[match.end() : stop].strip()
        parts += [text[end : match.start()], f"{match[1]}({name!r}"]
        end = stop
    return "".join([*parts, text[end:]])


def _end_of_argument(text: str, start: int) -> int:
    depth = 0
    for index in range(start, len(text)):
        character = text[index]
        if depth == 0 and character in ",)":
            return index
        depth += (character == "(") - (character == ")")
    return len(text)


def _check(text: str, node: ast.expr) -> None:
    match node:
        case ast.Constant(value=value) if type(value) in (int, float):
            return
        case ast.UnaryOp(op=ast.USub() | ast.Not(), operand=operand):
            _check(text, operand)
        case ast.BinOp(op=op, left=left, right=right) if type(op) in ARITHMETIC:
            _check(text, left)
            _check(text, right)
        case ast.BoolOp(values=parts):
            for part in parts:
                _check(text, part)
        case ast.Compare(ops=ops, left=left, comparators=others) if all(
            type(op) in COMPARISONS for op in ops
        ):
            for operand in (left, *others):
                _check(text, operand)
        case ast.Call():
            _check_call(text, node)
        case _:
            raise _invalid(text, f"{ast.unparse(node)[:60]} is not supported; {SYNTAX}")


def _check_call(text: str, call: ast.Call) -> None:
    name = function_of(call)
    if name not in FUNCTIONS:
        hint = did_you_mean(name, FUNCTIONS, f"use {listed(FUNCTIONS, 'or')}")
        raise _invalid(text, f"{name or 'this'} is not a function of {OPTION}{hint}")
    if len(call.args) != 1 or not isinstance(call.args[0], ast.Constant):
        raise _invalid(text, f"{name} takes the name of one policy; {SYNTAX}")
    given = [keyword.arg for keyword in call.keywords]
    wanted = [] if name == "capacity" else ["at"]
    if given != wanted:
        needs = "takes no load" if name == "capacity" else "needs a load, at=NUMBER"
        raise _invalid(text, f"{name} {needs}; {SYNTAX}")
    if wanted and load_of(call) is None:
        raise _invalid(text, f"at={ast.unparse(call.keywords[0].value)} is not a number; {SYNTAX}")


def function_of(call: ast.Call) -> str:
    return call.func.id if isinstance(call.func, ast.Name) else ""


def variant_of(call: ast.Call) -> str:
    return str(ast.literal_eval(call.args[0]))


def load_of(call: ast.Call) -> float | None:
    if not call.keywords or not isinstance(value := call.keywords[0].value, ast.Constant):
        return None
    return float(value.value) if isinstance(value.value, int | float) else None


def _degree(node: ast.expr) -> int:
    """Return the power of the unit of capacities that an expression has."""
    match node:
        case ast.Call():
            return int(function_of(node) == "capacity")
        case ast.UnaryOp(operand=operand):
            return _degree(operand)
        case ast.BinOp(op=op, left=left, right=right):
            one, other = _degree(left), _degree(right)
            if isinstance(op, ast.Mult | ast.Div):
                return one + other if isinstance(op, ast.Mult) else one - other
            return max(one, other)
    return 0


def _is_zero(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value == 0


def _invalid(text: str, reason: str) -> InvalidInput:
    return InvalidInput(f"{OPTION} {quoted(text)}: {reason}")
