"""Generate requests of households and teams: growing conversations, documents, quiet hours and rushes."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

from bench.simulator import BLOCK_TOKENS, Query

_SYSTEM_PROMPTS = 12
_SYSTEM_TOKENS = (100, 1500)
_TURNS_MEAN = 4.0
_THINK_S = 12.0
_DOCUMENT_SHARE = 0.08
_DOCUMENT_TOKENS = (3000, 12_000)
_TURN_TOKENS = (60.0, 0.8)
_ANSWER_TOKENS = (140.0, 0.8)
_ANSWER_MAX = 1200
_CONTEXT_TOKENS = 14_000
# A rush: the factor over the usual rate, its length, and the quiet time between rushes.
_RUSH_TIMES, _RUSH_S, _QUIET_S = 4.0, 15.0, 60.0


@dataclass(frozen=True, slots=True)
class Trace:
    """`conversations_per_s` begin on average, as a Poisson process or in rushes with the same average."""

    conversations_per_s: float
    lasts_s: float
    is_bursty: bool = False

    def queries(self, seed: int) -> list[Query]:
        """Return the queries, sorted by time. The same seed gives the same queries."""
        chance = random.Random(seed)
        systems = [_blocks(chance, chance.uniform(*_SYSTEM_TOKENS)) for _ in range(_SYSTEM_PROMPTS)]
        found = [
            query
            for begin_s in self._beginnings(chance)
            for query in _conversation(chance, begin_s, chance.choice(systems))
        ]
        return sorted((query for query in found if query.at_s < self.lasts_s), key=lambda query: query.at_s)

    def _beginnings(self, chance: random.Random) -> Iterator[float]:
        at_s = 0.0
        while at_s < self.lasts_s:
            rate = self.conversations_per_s
            if self.is_bursty:
                usual = rate * (_QUIET_S + _RUSH_S) / (_QUIET_S + _RUSH_TIMES * _RUSH_S)
                rate = usual * (_RUSH_TIMES if at_s % (_QUIET_S + _RUSH_S) > _QUIET_S else 1.0)
            at_s += chance.expovariate(rate)
            yield at_s


def _conversation(chance: random.Random, begin_s: float, system: tuple[int, ...]) -> Iterator[Query]:
    prompt, at_s = system, begin_s
    if chance.random() < _DOCUMENT_SHARE:
        prompt += _blocks(chance, chance.uniform(*_DOCUMENT_TOKENS))
    while True:
        prompt += _blocks(chance, _lognormal(chance, *_TURN_TOKENS))
        answer = max(2, min(_ANSWER_MAX, int(_lognormal(chance, *_ANSWER_TOKENS))))
        yield Query(at_s, prompt, answer)
        prompt += _blocks(chance, answer)
        if chance.random() < 1 / _TURNS_MEAN or BLOCK_TOKENS * len(prompt) > _CONTEXT_TOKENS:
            return
        at_s += chance.expovariate(1 / _THINK_S) + 0.04 * answer


def _lognormal(chance: random.Random, median: float, spread: float) -> float:
    return median * chance.lognormvariate(0, spread)


def _blocks(chance: random.Random, tokens: float) -> tuple[int, ...]:
    return tuple(chance.getrandbits(48) for _ in range(max(1, round(tokens / BLOCK_TOKENS))))
