"""Whether two samples may be of one kind: the test of Kolmogorov and Smirnov, and what it is asked here. Pure."""

from bisect import bisect_right
from collections.abc import Sequence
from math import exp, sqrt

SAMPLES_MIN = 20
DISTANCE_MIN = 0.25
"""Smaller differences are of no use to a seller, however sure they are."""
_ANOMALY = 1e-4
_ALIKE = 0.01


def distance(one: Sequence[float], other: Sequence[float]) -> float:
    """The greatest distance between their distribution functions, from 0 to 1. Neither may be empty."""
    one, other = sorted(one), sorted(other)
    places = {*one, *other}
    return max(abs(bisect_right(one, x) / len(one) - bisect_right(other, x) / len(other)) for x in places)


def probability(one: Sequence[float], other: Sequence[float]) -> float:
    """How probable so great a distance is where both are of one kind (Stephens 1970; good from 20 on)."""
    root = sqrt(len(one) * len(other) / (len(one) + len(other)))
    scaled = (root + 0.12 + 0.11 / root) * distance(one, other)
    if scaled < 0.3:
        # The series does not settle here, and what it comes to is 1 to five places.
        return 1.0
    terms = (exp(-2 * n * n * scaled * scaled) * (1 if n % 2 else -1) for n in range(1, 101))
    return min(1.0, max(0.0, 2 * sum(terms)))


def tells_audits_apart(audits_s: Sequence[float], traffic_s: Sequence[float]) -> bool:
    """Whether a seller treats audits otherwise than traffic, by seconds to a first token.

    Requests must be alike in length. Of 1,000 tests on honest sellers a tenth of one is wrong.
    """
    if min(len(audits_s), len(traffic_s)) < SAMPLES_MIN:
        return False
    return distance(audits_s, traffic_s) >= DISTANCE_MIN and probability(audits_s, traffic_s) < _ANOMALY


def looks_like_traffic(canaries: Sequence[float], traffic: Sequence[float]) -> bool:
    """Whether canaries could be told from traffic by this figure of theirs (tokens of the prompt, hour of day)."""
    return probability(canaries, traffic) >= _ALIKE
