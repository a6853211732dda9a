"""Measure how far a seller's log-probabilities are from its listed model's, over tokens that both chose.

Another engine's arithmetic moves them a little, another model or coarse weights move them more. arXiv 2504.04715
says how far this can be trusted: not against a seller that runs the real model only for requests with
log-probabilities.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite
from typing import Any

TOKENS_MAX = 256
TOKENS_MIN = 4
"""With fewer tokens in common, the comparison says nothing."""
FIRM_NATS = 0.2
"""If the next best token is at least this far behind, honest arithmetic never chooses it, by default. It is 0.12
at most with the demo model between fp32, bf16 and fp16 on two engines, and up to 0.31 with int4."""


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token of a greedy answer with its log-probability. `margin` is the distance to the next best token.

    All in nats. The margin is 0 if it is unknown.
    """

    token: str
    logprob: float
    margin: float = 0.0


def token_logprobs_of(choice: Mapping[str, Any]) -> tuple[TokenLogprob, ...]:
    """Return the tokens of an OpenAI choice (whole, or a chunk's), up to the first invalid one."""
    logprobs = choice.get("logprobs")
    content = logprobs.get("content") if isinstance(logprobs, dict) else None
    return tuple(_read(content[:TOKENS_MAX])) if isinstance(content, list) else ()


def _read(content: Sequence[Any]) -> Iterator[TokenLogprob]:
    for each in content:
        token, logprob = (each.get("token"), each.get("logprob")) if isinstance(each, dict) else (None, None)
        if not isinstance(token, str) or not isinstance(logprob, int | float) or not isfinite(logprob):
            return
        yield TokenLogprob(token, float(logprob), _margin(token, logprob, each.get("top_logprobs")))


def _margin(token: str, logprob: float, top: Any) -> float:
    """Return how far behind the next best token is; 0 if unknown, or if the token is not the most probable."""
    others = [each for each in top if isinstance(each, dict)] if isinstance(top, list) else []
    behind = [each.get("logprob") for each in others if each.get("token") != token]
    known = [each for each in behind if isinstance(each, int | float) and isfinite(each)]
    return max(0.0, logprob - max(known)) if known else 0.0


def common_tokens(reference: Sequence[TokenLogprob], observed: Sequence[TokenLogprob]) -> int:
    """Return the number of equal first tokens."""
    same = (one.token == other.token for one, other in zip(reference, observed, strict=False))
    return next((n for n, is_same in enumerate(same) if not is_same), min(len(reference), len(observed)))


def distance_nats(
    reference: Sequence[TokenLogprob], observed: Sequence[TokenLogprob], firm_nats: float = FIRM_NATS
) -> float | None:
    """Return the mean difference of log-probabilities over the equal first tokens, in nats a token.

    Infinite if a token differs where the reference is sure; None if too few tokens are in common.
    """
    common = common_tokens(reference, observed)
    if common < min(len(reference), len(observed)) and reference[common].margin >= firm_nats:
        return inf
    if common < TOKENS_MIN:
        return None
    both = zip(reference[:common], observed[:common], strict=True)
    return sum(abs(one.logprob - other.logprob) for one, other in both) / common
