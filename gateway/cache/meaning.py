"""Questions of the same meaning, by the cosine of their embeddings, without a matrix library.

Every vector gets a signature of 64 bits: on which side of 64 fixed planes it lies. Vectors at an angle a differ in
about 64·a/pi of them (Charikar 2002), so that the few with the nearest signatures are compared in full.
"""

import math
import random
from collections import OrderedDict
from dataclasses import dataclass

CONTEXTS_MAX = 1000
QUESTIONS_MAX = 500

_PLANES = 64
_COMPARED = 8


@dataclass(frozen=True, slots=True)
class _Question:
    vector: tuple[float, ...]
    signature: int
    key: bytes


class Meanings:
    """Questions asked so far, each with the key of its answer, apart for every context.

    A context is everything around the question: tenant, privacy, model, parameters and the conversation before it.
    """

    def __init__(self, similarity_min: float) -> None:
        self._similarity_min = similarity_min
        self._contexts: OrderedDict[bytes, OrderedDict[bytes, _Question]] = OrderedDict()
        self._planes: tuple[tuple[float, ...], ...] = ()

    def add(self, context: bytes, vector: list[float], key: bytes) -> None:
        unit = _unit(vector)
        if unit is None:
            return
        question = _Question(unit, self._signature(unit), key)
        questions = self._contexts.setdefault(context, OrderedDict())
        self._contexts.move_to_end(context)
        questions[key] = question
        questions.move_to_end(key)
        if len(questions) > QUESTIONS_MAX:
            questions.popitem(last=False)
        if len(self._contexts) > CONTEXTS_MAX:
            self._contexts.popitem(last=False)

    def nearest(self, context: bytes, vector: list[float]) -> bytes | None:
        """The key of the most similar question, if one is similar enough."""
        unit = _unit(vector)
        if unit is None:
            return None
        signature = self._signature(unit)
        questions = self._contexts.get(context)
        if not questions:
            return None
        likely = sorted(questions.values(), key=lambda q: (q.signature ^ signature).bit_count())[:_COMPARED]
        similarity, key = max((_dot(unit, question.vector), question.key) for question in likely)
        return key if similarity >= self._similarity_min else None

    def _signature(self, unit: tuple[float, ...]) -> int:
        if not self._planes or len(self._planes[0]) != len(unit):
            # The model has changed its width, or there was none: older vectors mean nothing beside new ones.
            self._contexts.clear()
            chance = random.Random(_PLANES)  # noqa: S311 - planes, not secrets
            self._planes = tuple(tuple(chance.gauss(0, 1) for _ in unit) for _ in range(_PLANES))
        return sum((_dot(unit, plane) > 0) << at for at, plane in enumerate(self._planes))


def _unit(vector: list[float]) -> tuple[float, ...] | None:
    norm = math.sqrt(math.fsum(value * value for value in vector))
    return tuple(value / norm for value in vector) if norm > 0 and math.isfinite(norm) else None


def _dot(one: tuple[float, ...], other: tuple[float, ...]) -> float:
    if len(one) != len(other):
        return -1.0
    return sum(map(float.__mul__, one, other))
