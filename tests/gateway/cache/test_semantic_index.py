"""Questions of the same meaning are found within their context, and never in another."""

import math
import random

from gateway.cache.semantic_index import QUESTIONS_MAX, Point, SemanticIndex

LASTS_S = 60.0


def placed(meanings: SemanticIndex, one: list[float]) -> Point:
    point = meanings.place(one)
    assert point
    return point


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
    meanings = SemanticIndex(0.97, LASTS_S)  # about 14 degrees
    vectors = [vector(chance, 384) for _ in range(QUESTIONS_MAX)]
    for at, one in enumerate(vectors):
        meanings.add(b"context", placed(meanings, one), b"%d" % at)

    def found(one: list[float], context: bytes = b"context") -> bytes | None:
        return meanings.nearest(context, placed(meanings, one))

    assert all(found(near(vectors[at], 5, chance)) == b"%d" % at for at in range(100))
    assert all(found(near(vectors[at], 30, chance)) is None for at in range(100))
    assert found(vectors[0], b"another") is None


def test_another_width_or_an_empty_vector_finds_nothing() -> None:
    meanings = SemanticIndex(0.9, LASTS_S)
    old = placed(meanings, [1.0, 0.0, 0.0])
    meanings.add(b"context", old, b"old")

    assert meanings.place([0.0, 0.0, 0.0]) is None
    assert meanings.nearest(b"context", placed(meanings, [1.0, 0.0])) is None
    meanings.add(b"context", old, b"late")
    assert meanings.size_bytes == 0


def test_one_bound_holds_over_all_contexts_and_what_is_over_is_forgotten() -> None:
    now_s = 0.0
    chance = random.Random(7)
    meanings = SemanticIndex(0.97, LASTS_S, 100_000, clock=lambda: now_s)
    points = [placed(meanings, vector(chance, 1536)) for _ in range(40)]
    for at, point in enumerate(points):
        now_s += 1.0
        meanings.add(b"context %d" % (at % 20), point, b"%d" % at)
        assert meanings.size_bytes <= 100_000

    assert meanings.nearest(b"context 0", points[0]) is None  # those asked longest ago made room
    assert meanings.nearest(b"context 19", points[39]) == b"39"
    meanings.forget(b"context 19", b"39")
    assert meanings.nearest(b"context 19", points[39]) is None
    now_s += LASTS_S
    assert meanings.nearest(b"context 18", points[38]) is None
    meanings.add(b"context", points[0], b"new")
    assert len(meanings._by_age) == len(meanings._contexts) == 1
