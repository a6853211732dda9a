"""Questions of the same meaning are found within their context, and never in another."""

import math
import random

from gateway.cache.meaning import QUESTIONS_MAX, Meanings


def vector(chance: random.Random, width: int = 64) -> list[float]:
    return [chance.gauss(0, 1) for _ in range(width)]


def near(one: list[float], degrees: float, chance: random.Random) -> list[float]:
    """Another vector at that angle."""
    other = vector(chance, len(one))
    norm = math.hypot(*one)
    unit = [value / norm for value in one]
    along = sum(map(float.__mul__, other, unit))
    across = [value - along * part for value, part in zip(other, unit, strict=True)]
    length = math.hypot(*across)
    angle = math.radians(degrees)
    return [
        math.cos(angle) * part + math.sin(angle) * value / length for part, value in zip(unit, across, strict=True)
    ]


def test_the_similar_are_found_among_many_and_others_are_not() -> None:
    chance = random.Random(7)
    meanings = Meanings(similarity_min=0.97)  # about 14 degrees
    vectors = [vector(chance) for _ in range(QUESTIONS_MAX)]
    for at, one in enumerate(vectors):
        meanings.add(b"context", one, b"%d" % at)

    assert all(meanings.nearest(b"context", near(vectors[at], 5, chance)) == b"%d" % at for at in range(50))
    assert all(meanings.nearest(b"context", near(vectors[at], 30, chance)) is None for at in range(50))
    assert meanings.nearest(b"another", vectors[0]) is None


def test_another_width_or_an_empty_vector_finds_nothing() -> None:
    meanings = Meanings(similarity_min=0.9)
    meanings.add(b"context", [1.0, 0.0, 0.0], b"old")
    meanings.add(b"context", [0.0, 0.0, 0.0], b"nothing")

    assert meanings.nearest(b"context", [1.0, 0.0]) is None
    assert meanings.nearest(b"context", [0.0, 0.0, 0.0]) is None
