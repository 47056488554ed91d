"""Costs of prefills and decode steps, learned from the steps that an engine computes.

In: a guess of the costs, and each step's work and duration. Out: `Costs`, whose functions follow
the latest fit of

    a step with decodes only   base + turn * turns + context * context tokens            seconds
    a prefill                  base * steps + token * tokens + pair * query-key pairs    seconds

A step that does both is a prefill of its duration less what its decodes add to a step. Steps are
grouped by the powers of two of their terms, and the latest steps of each group are kept; the median
one stands for its group, so that stalls and compilations have no effect. The guess gives the shape
where nothing was observed: it takes part in the fit with a small weight, scaled to the observed
steps. The fit minimises squared relative errors, with no negative coefficient.

Standard library only, since vLLM loads this module.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from itertools import combinations
from statistics import median
from typing import NamedTuple

from servers.policies.base import Costs

Terms = tuple[float, float, float]

REFIT_STEPS = 64
"""Observations between two fits; the first fits come after fewer."""
MIN_STEPS, MAX_STEPS = 3, 15
"""Observations of a group: fewer do not count, and more are forgotten."""
MAX_GROUPS = 200
GUESS_WEIGHT = 0.03
"""Weight of a squared error against the guess, where an observed group has 1."""
GUESSED_TOKENS = (256, 1024, 4096, 16384, 65536)
GUESSED_TURNS = (1, 8, 64)


class Observed(NamedTuple):
    terms: Terms
    seconds: float


class LearnedCosts:
    def __init__(self, guess: Costs) -> None:
        self._guess = guess
        self._prefill = _Fit(
            [Observed(self._prompt(n), guess.prefill_s(n)) for n in GUESSED_TOKENS]
        )
        batches = [
            (turns, turns * tokens) for turns in GUESSED_TURNS for tokens in GUESSED_TOKENS[::2]
        ]
        self._decode = _Fit(
            [
                Observed((1.0, float(turns), float(context)), guess.decode_s(turns, context))
                for turns, context in batches
            ]
        )
        self.costs = Costs(
            self._prefill_s, guess.reload_s, guess.step_tokens, guess.kv_tokens, self._decode_step_s
        )

    def observe(
        self, prefill_tokens: int, pairs: int, turns: int, context_tokens: int, seconds: float
    ) -> None:
        """Learn from a step with `prefill_tokens` tokens of prompts, which attend to `pairs` pairs
        of tokens, and with decodes of `turns` turns, which have `context_tokens` in total."""
        if seconds <= 0:
            return
        if not prefill_tokens:
            self._decode.add(Observed((1.0, float(turns), float(context_tokens)), seconds))
            return
        _, turn_s, context_s = self._decode.weights
        decodes_s = turn_s * turns + context_s * context_tokens
        terms = (1.0, float(prefill_tokens), float(pairs))
        self._prefill.add(Observed(terms, max(seconds - decodes_s, seconds / 2)))

    def _prompt(self, tokens: int) -> Terms:
        steps = -(-tokens // self._guess.step_tokens)
        return (float(steps), float(tokens), float(tokens * (tokens + 1) // 2))

    def _prefill_s(self, tokens: int) -> float:
        if not self._prefill.is_fitted:
            return self._guess.prefill_s(tokens)
        return _dot(self._prefill.weights, self._prompt(tokens))

    def _decode_step_s(self, turns: int, context_tokens: int) -> float:
        if not self._decode.is_fitted:
            return self._guess.decode_s(turns, context_tokens)
        return _dot(self._decode.weights, (1.0, float(turns), float(context_tokens)))


class _Fit:
    """Seconds as a sum of three terms with weights."""

    def __init__(self, guesses: list[Observed]) -> None:
        self._guesses = guesses
        self._groups: OrderedDict[tuple[int, int], deque[Observed]] = OrderedDict()
        self._observed = 0
        self._next_fit = 1
        self.is_fitted = False
        """Whether the weights are those of observations."""
        self.weights = self._guessed = least_squares([(guess, 1.0) for guess in guesses])

    def add(self, observed: Observed) -> None:
        _, first, second = observed.terms
        group = (int(first).bit_length(), int(second).bit_length())
        if group not in self._groups:
            self._groups[group] = deque(maxlen=MAX_STEPS)
        self._groups[group].append(observed)
        self._groups.move_to_end(group)
        if len(self._groups) > MAX_GROUPS:
            self._groups.popitem(last=False)
        self._observed += 1
        if self._observed >= self._next_fit:
            self._next_fit = self._observed + min(self._observed, REFIT_STEPS)
            self._refit()

    def _refit(self) -> None:
        medians = [
            self._median(group) for group in self._groups.values() if len(group) >= MIN_STEPS
        ]
        if not medians:
            return
        scale = median([one.seconds / _dot(self._guessed, one.terms) for one in medians])
        rows = [(one, 1.0) for one in medians]
        rows += [
            (Observed(guess.terms, guess.seconds * scale), GUESS_WEIGHT) for guess in self._guesses
        ]
        self.weights, self.is_fitted = least_squares(rows), True

    def _median(self, group: deque[Observed]) -> Observed:
        by_ratio = sorted(group, key=lambda one: one.seconds / _dot(self.weights, one.terms))
        return by_ratio[len(by_ratio) // 2]


def least_squares(rows: list[tuple[Observed, float]]) -> Terms:
    """Return the weights of the terms, none negative, with the least sum of squared relative
    errors, each times the number of its row. All subsets of the terms are tried, as in
    `servers.profiles.fit`."""
    gram = [[0.0] * 3 for _ in range(3)]
    right = [0.0] * 3
    for (terms, seconds), weight in rows:
        relative = [term / seconds for term in terms]
        for i in range(3):
            right[i] += weight * relative[i]
            for j in range(3):
                gram[i][j] += weight * relative[i] * relative[j]
    best, chosen = 0.0, [0.0, 0.0, 0.0]
    for count in (1, 2, 3):
        for columns in combinations(range(3), count):
            weights = _solve([[gram[i][j] for j in columns] + [right[i]] for i in columns])
            if weights is None or min(weights) < 0:
                continue
            # At the optimum the sum of squared errors is a constant less this product.
            gain = sum([w * right[i] for w, i in zip(weights, columns, strict=True)])
            if gain > best:
                best, chosen = gain, [0.0, 0.0, 0.0]
                for weight, column in zip(weights, columns, strict=True):
                    chosen[column] = weight
    return (chosen[0], chosen[1], chosen[2])


def _solve(matrix: list[list[float]]) -> list[float] | None:
    """Solve the symmetric equations of an augmented matrix; return None if they are singular."""
    size = len(matrix)
    diagonal = [matrix[i][i] for i in range(size)]
    for i in range(size):
        if matrix[i][i] <= 1e-12 * diagonal[i]:
            return None
        for k in range(i + 1, size):
            factor = matrix[k][i] / matrix[i][i]
            for j in range(i, size + 1):
                matrix[k][j] -= factor * matrix[i][j]
    solution = [0.0] * size
    for i in reversed(range(size)):
        rest = sum([matrix[i][j] * solution[j] for j in range(i + 1, size)])
        solution[i] = (matrix[i][size] - rest) / matrix[i][i]
    return solution


def _dot(weights: Terms, terms: Terms) -> float:
    return weights[0] * terms[0] + weights[1] * terms[1] + weights[2] * terms[2]
