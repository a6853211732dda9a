"""Test whether two samples may come from one distribution (Kolmogorov and Smirnov), as audits use it. Pure."""

from bisect import bisect_right
from collections.abc import Sequence
from math import exp, sqrt

SAMPLES_MIN = 20
DISTANCE_MIN = 0.25
"""A seller cannot use smaller differences, however certain they are."""
_ANOMALY = 1e-4
_ALIKE = 0.01


def distance(one: Sequence[float], other: Sequence[float]) -> float:
    """Return the greatest distance between the distribution functions of `one` and `other`, from 0 to 1.

    Both have the same unit, and neither may be empty.
    """
    one, other = sorted(one), sorted(other)
    places = {*one, *other}
    return max(abs(bisect_right(one, x) / len(one) - bisect_right(other, x) / len(other)) for x in places)


def probability(one: Sequence[float], other: Sequence[float]) -> float:
    """Return the probability of so great a distance within one distribution (Stephens 1970; good from 20 on)."""
    root = sqrt(len(one) * len(other) / (len(one) + len(other)))
    scaled = (root + 0.12 + 0.11 / root) * distance(one, other)
    if scaled < 0.3:
        # The series does not converge here, and the result is 1 to five places.
        return 1.0
    terms = (exp(-2 * n * n * scaled * scaled) * (1 if n % 2 else -1) for n in range(1, 101))
    return min(1.0, max(0.0, 2 * sum(terms)))


def tells_audits_apart(audits_s: Sequence[float], traffic_s: Sequence[float]) -> bool:
    """Return whether a seller treats audits differently from traffic, by seconds to the first token.

    Requests must be of similar length. Of 1,000 tests on honest sellers, 0.1 are wrong.
    """
    if min(len(audits_s), len(traffic_s)) < SAMPLES_MIN:
        return False
    return distance(audits_s, traffic_s) >= DISTANCE_MIN and probability(audits_s, traffic_s) < _ANOMALY


def looks_like_traffic(canaries: Sequence[float], traffic: Sequence[float]) -> bool:
    """Return whether canaries look like traffic in this figure (tokens of the prompt, hour of day)."""
    return probability(canaries, traffic) >= _ALIKE
