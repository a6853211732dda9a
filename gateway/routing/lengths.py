"""Expected answer lengths by key and model: a moving quantile, because limits are high and rarely reached."""

from collections import OrderedDict
from collections.abc import Hashable
from typing import TypeVar

# The assumed length before the first answer.
USUAL_TOKENS = 256
# The share of answers that are at most as long as expected. It is above one half, because long answers cost more.
_SHARE = 0.6
_STEP = 0.08
_FIRST_STEP = 0.5
_REMEMBERED = 4096
_LEAST = 1.0
_MOST = 100_000.0

Name = TypeVar("Name", bound=Hashable)


class OutputLengths:
    """Bounded: the least recently seen pairs of key and model are dropped first."""

    def __init__(self) -> None:
        self._by_pair: OrderedDict[tuple[str, str], tuple[float, int]] = OrderedDict()
        self._by_model: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def expected(self, key_id: str, model: str, limit: int | None) -> int:
        """Return the expected number of tokens of an answer, within the request's limit."""
        found = self._by_pair.get((key_id, model)) or self._by_model.get(model)
        tokens = int(found[0]) if found else USUAL_TOKENS
        return tokens if limit is None or tokens < limit else limit

    def observe(self, key_id: str, model: str, tokens: int) -> None:
        if tokens > 0:
            _learn(self._by_pair, (key_id, model), tokens)
            _learn(self._by_model, model, tokens)


def _learn(known: OrderedDict[Name, tuple[float, int]], name: Name, tokens: int) -> None:
    quantile, count = known.get(name, (float(tokens), 0))
    # Multiply instead of adding, so that a step means the same for short and long answers.
    step = max(_STEP, _FIRST_STEP / (1 + count))
    quantile *= 1 + step * _SHARE if tokens > quantile else 1 - step * (1 - _SHARE) if tokens < quantile else 1
    known[name] = min(_MOST, max(_LEAST, quantile)), count + 1
    known.move_to_end(name)
    if len(known) > _REMEMBERED:
        known.popitem(last=False)
