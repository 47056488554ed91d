"""The costs that a policy knows, as the option `costs` of the plug-in and of `bench`, in seconds.

Standard library and msgspec only, since vLLM loads this module.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from servers.admission import STEP_TOKENS
from servers.policies.base import Costs

Cost = Annotated[float, Meta(ge=0)]


class DecodeStep(Struct, frozen=True, forbid_unknown_fields=True):
    """A decode step of n turns with m context tokens in total takes
    base_s + turn_s · n + context_token_s · m."""

    base_s: Cost
    turn_s: Cost
    context_token_s: Cost


class CostCurve(Struct, frozen=True, forbid_unknown_fields=True):
    """Prefilling n tokens alone in the engine takes base_s + linear_s · n + quadratic_s · n²
    (Continuum v3, §5.2 fits the same curve), and reloading them reload_s_per_token · n."""

    base_s: Cost
    linear_s: Cost
    quadratic_s: Cost
    reload_s_per_token: Cost | None = None
    """None without an offload tier."""
    step_tokens: Annotated[int, Meta(ge=1)] = STEP_TOKENS
    decode_step: DecodeStep | None = None
    """None: policies do not know it."""

    def costs(self) -> Costs:
        step, reload_s = self.decode_step, self.reload_s_per_token

        def prefill_s(tokens: int) -> float:
            return self.base_s + self.linear_s * tokens + self.quadratic_s * tokens * tokens

        def reload(tokens: int) -> float:
            return (reload_s or 0.0) * tokens

        def decode_step_s(turns: int, context_tokens: int) -> float:
            if step is None:
                return prefill_s(turns)
            return step.base_s + step.turn_s * turns + step.context_token_s * context_tokens

        return Costs(
            prefill_s,
            None if reload_s is None else reload,
            self.step_tokens,
            decode_step_s=None if step is None else decode_step_s,
        )
