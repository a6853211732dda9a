"""How far a seller's log-probabilities are from those of the model that it lists: over tokens both have chosen.

An engine's arithmetic moves them by little, another model or coarse weights by more (arXiv 2504.04715 says how far
that can be trusted: not against somebody who runs the real model for those who ask for log-probabilities).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite
from typing import Any

TOKENS_MAX = 256
TOKENS_MIN = 4
"""Fewer tokens in common say nothing."""
FIRM_NATS = 0.2
"""Where the next probable token is so far behind, no honest arithmetic chooses it, by default. It is 0.12 at most
with the demo model between fp32, bf16 and fp16 on two engines, and up to 0.31 with int4."""


@dataclass(frozen=True, slots=True)
class Told:
    """A token of a greedy answer with its log-probability; `margin` is how far behind the next probable one is.

    All in nats; the margin is 0 where it is not known.
    """

    token: str
    logprob: float
    margin: float = 0.0


def told_of(choice: Mapping[str, Any]) -> tuple[Told, ...]:
    """The tokens of an OpenAI choice (whole, or a chunk's) as it tells them; those that are none end them."""
    logprobs = choice.get("logprobs")
    content = logprobs.get("content") if isinstance(logprobs, dict) else None
    return tuple(_read(content[:TOKENS_MAX])) if isinstance(content, list) else ()


def _read(content: Sequence[Any]) -> Iterator[Told]:
    for each in content:
        token, logprob = (each.get("token"), each.get("logprob")) if isinstance(each, dict) else (None, None)
        if not isinstance(token, str) or not isinstance(logprob, int | float) or not isfinite(logprob):
            return
        yield Told(token, float(logprob), _margin(token, logprob, each.get("top_logprobs")))


def _margin(token: str, logprob: float, top: Any) -> float:
    """How far behind the next probable token is; 0 where nobody tells, or the token is not the most probable."""
    others = [each for each in top if isinstance(each, dict)] if isinstance(top, list) else []
    behind = [each.get("logprob") for each in others if each.get("token") != token]
    known = [each for each in behind if isinstance(each, int | float) and isfinite(each)]
    return max(0.0, logprob - max(known)) if known else 0.0


def common_tokens(reference: Sequence[Told], told: Sequence[Told]) -> int:
    """How many first tokens are the same."""
    same = (one.token == other.token for one, other in zip(reference, told, strict=False))
    return next((n for n, is_same in enumerate(same) if not is_same), min(len(reference), len(told)))


def distance_nats(reference: Sequence[Told], told: Sequence[Told], firm_nats: float = FIRM_NATS) -> float | None:
    """Mean difference of log-probabilities over the first tokens that are the same, in nats a token.

    Infinite where a token is another one that the reference is sure of; None where too few are in common.
    """
    common = common_tokens(reference, told)
    if common < min(len(reference), len(told)) and reference[common].margin >= firm_nats:
        return inf
    if common < TOKENS_MIN:
        return None
    both = zip(reference[:common], told[:common], strict=True)
    return sum(abs(one.logprob - other.logprob) for one, other in both) / common
