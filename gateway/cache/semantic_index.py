"""Questions of the same meaning, by the cosine of their embeddings, without a matrix library.

Every vector gets a signature of 64 bits: on which side of 64 planes it lies. Vectors at an angle a differ in about
64·a/pi of them (Charikar 2002), so only those with similar signatures are compared in full. A plane looks at 32 of
the numbers, chosen at random, which says nearly as much as looking at all (Li, Hastie and Church 2006).

CPU time on the event loop, with 1536 numbers: 0.25 ms to place a vector, once per request; 0.05 ms to scan 500
questions; 0.05 ms for each of those compared, at most 8 and mostly none. All vectors together may use 64 MiB,
about 9000 such questions.
"""

import math
import random
import time
from array import array
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import mul

BYTES_MAX = 64 * 2**20
"""Limit on all vectors in all contexts, including their overhead."""
QUESTIONS_MAX = 500
"""Questions in one context: at most this many are scanned for one answer."""

_PLANES = 64
_SAMPLED = 32
_COMPARED = 8
# Extra differing bits beyond those expected at the minimum similarity: four standard deviations, plus some for
# sampling.
_BITS_MORE = 12
# One question's own objects, its entries in two tables, and its share of a context's.
_OVERHEAD_BYTES = 1024
_ROUNDING = 1e-6


@dataclass(frozen=True, slots=True)
class Point:
    """A question's vector, of length 1, and its signature."""

    vector: "array[float]"
    signature: int


@dataclass(frozen=True, slots=True)
class _Question:
    point: Point
    key: bytes
    until_s: float


class SemanticIndex:
    """Questions asked so far, each with the key of its answer, separate for every context. One event loop owns it.

    A context is everything around the question: tenant, privacy, model, parameters and the conversation before it.
    A question is forgotten with its answer: after `lasts_s`, or when a caller finds the answer missing. The oldest
    questions make room. `similarity_min` is a cosine from 0 to 1; `clock` gives seconds that never go back.
    """

    def __init__(
        self,
        similarity_min: float,
        lasts_s: float,
        bytes_max: int = BYTES_MAX,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._similarity_min = similarity_min
        self._bits_max = round(_PLANES * math.acos(similarity_min) / math.pi) + _BITS_MORE
        self._lasts_s = lasts_s
        self._bytes_max = bytes_max
        self._clock = clock
        self._contexts: dict[bytes, OrderedDict[bytes, _Question]] = {}
        self._by_age: OrderedDict[tuple[bytes, bytes], float] = OrderedDict()
        """Context and key of every question, and when it expires."""
        self._width = 0
        self._planes: tuple[tuple[tuple[int, ...], tuple[float, ...]], ...] = ()

    @property
    def size_bytes(self) -> int:
        return len(self._by_age) * self._question_bytes

    def place(self, vector: Sequence[float]) -> Point | None:
        """Return where a question lies among the others; None for a vector without a direction.

        `vector` is an embedding in any unit: only its direction counts.
        """
        norm = math.hypot(*vector)
        if not 0 < norm < math.inf:
            return None
        if len(vector) != self._width:
            self._begin_anew(len(vector))
        unit = array("f", [value / norm for value in vector])
        at = unit.__getitem__
        sides = (sum(map(mul, map(at, sampled), weights)) > 0 for sampled, weights in self._planes)
        return Point(unit, sum(side << bit for bit, side in enumerate(sides)))

    def add(self, context: bytes, point: Point, key: bytes) -> None:
        if len(point.vector) != self._width:
            return  # the model has changed meanwhile
        self.forget(context, key)
        now_s = self._clock()
        questions = self._contexts.setdefault(context, OrderedDict())
        questions[key] = _Question(point, key, now_s + self._lasts_s)
        self._by_age[context, key] = now_s + self._lasts_s
        if len(questions) > QUESTIONS_MAX:
            self.forget(context, next(iter(questions)))
        self._make_room(now_s)

    def nearest(self, context: bytes, point: Point) -> bytes | None:
        """Return the key of the most similar question, if one is similar enough."""
        questions = self._contexts.get(context)
        if not questions or len(point.vector) != self._width:
            return None
        now_s, signature, bits_max = self._clock(), point.signature, self._bits_max
        likely: list[tuple[int, _Question]] = []
        for question in questions.values():
            bits = (question.point.signature ^ signature).bit_count()
            if bits <= bits_max and now_s < question.until_s:
                likely.append((bits, question))
        likely.sort(key=lambda one: one[0])
        compared = ((_cosine(point, one.point), one.key) for _, one in likely[:_COMPARED])
        similarity, key = max(compared, default=(-1.0, b""))
        return key if similarity >= self._similarity_min - _ROUNDING else None

    def forget(self, context: bytes, key: bytes) -> None:
        """Forget a question, because its answer is gone."""
        if self._by_age.pop((context, key), None) is None:
            return
        questions = self._contexts[context]
        del questions[key]
        if not questions:
            del self._contexts[context]

    @property
    def _question_bytes(self) -> int:
        return 4 * self._width + _OVERHEAD_BYTES

    def _make_room(self, now_s: float) -> None:
        """All last equally long, so those added first expire first."""
        while self._by_age:
            oldest = next(iter(self._by_age))
            if self.size_bytes <= self._bytes_max and now_s < self._by_age[oldest]:
                return
            self.forget(*oldest)

    def _begin_anew(self, width: int) -> None:
        """Start over, because the model's width changed or there was none: older vectors cannot be compared with
        new ones.
        """
        self._contexts.clear()
        self._by_age.clear()
        self._width = width
        chance = random.Random(_PLANES)  # noqa: S311 - planes, not secrets
        looked_at = min(width, _SAMPLED)
        self._planes = tuple(
            (
                tuple(chance.sample(range(width), looked_at)),
                tuple(chance.gauss(0, 1) for _ in range(looked_at)),
            )
            for _ in range(_PLANES)
        )


def _cosine(first: Point, second: Point) -> float:
    return float(sum(map(mul, first.vector, second.vector)))
