"""Read from log-probabilities how sure an engine was of each token of its greedy answer."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

TOKENS_MAX = 256
FIRM_NATS = 0.2
"""If the next best token is at least this far behind, honest arithmetic never chooses it. It is 0.12 at most with
the demo model between fp32, bf16 and fp16 on two engines, and up to 0.31 with int4."""


@dataclass(frozen=True, slots=True)
class GreedyToken:
    """A token of a greedy answer. `margin` is the distance to the next best token in nats, 0 if it is unknown."""

    token: str
    margin: float = 0.0


def greedy_tokens_of(choice: Mapping[str, Any]) -> tuple[GreedyToken, ...]:
    """Return the tokens of a whole OpenAI choice, up to the first invalid one."""
    logprobs = choice.get("logprobs")
    content = logprobs.get("content") if isinstance(logprobs, dict) else None
    return tuple(_read(content[:TOKENS_MAX])) if isinstance(content, list) else ()


def _read(content: Sequence[Any]) -> Iterator[GreedyToken]:
    for each in content:
        token, logprob = (each.get("token"), each.get("logprob")) if isinstance(each, dict) else (None, None)
        if not isinstance(token, str) or not isinstance(logprob, int | float) or not isfinite(logprob):
            return
        yield GreedyToken(token, _margin(token, logprob, each.get("top_logprobs")))


def _margin(token: str, logprob: float, top: Any) -> float:
    """Return how far behind the next best token is; 0 if unknown, or if the token is not the most probable."""
    others = [each for each in top if isinstance(each, dict)] if isinstance(top, list) else []
    behind = [each.get("logprob") for each in others if each.get("token") != token]
    known = [each for each in behind if isinstance(each, int | float) and isfinite(each)]
    return max(0.0, logprob - max(known)) if known else 0.0
