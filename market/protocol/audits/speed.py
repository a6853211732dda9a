"""Check whether a seller's speed is possible, and matches its statement. This is only a suspicion. Pure."""

from collections.abc import Sequence
from statistics import median
from typing import Literal

SEEN_MIN = 8
SPECULATED_TIMES = 5.0
"""Speculative decoding makes an answer at most this many times faster."""
_SLOWER_PARTS = 0.5
_FASTER_TIMES = 3.0

Anomaly = Literal["faster_than_memory", "faster_than_said", "slower_than_said"]


def decode_most_tokens_per_s(active_bytes: int, memory_bytes_per_s: float) -> float:
    """Return the most tokens per second of one stream: each token reads all its active weights, and drafts share a
    read.

    `memory_bytes_per_s` is the bandwidth of the machine's class, all its devices together.
    """
    return SPECULATED_TIMES * memory_bytes_per_s / active_bytes


def pace_anomaly(
    seen_tokens_per_s: Sequence[float], listed_tokens_per_s: float, most_tokens_per_s: float | None = None
) -> Anomaly | None:
    """Return what is odd about the speeds of the last answers, of 64 tokens or more each; None if there are too
    few.

    A speed far above the machine's maximum or the seller's statement means a smaller model, or no model at all.
    """
    if len(seen_tokens_per_s) < SEEN_MIN:
        return None
    usual = median(seen_tokens_per_s)
    if most_tokens_per_s is not None and usual > most_tokens_per_s:
        return "faster_than_memory"
    if usual > _FASTER_TIMES * listed_tokens_per_s:
        return "faster_than_said"
    return "slower_than_said" if usual < _SLOWER_PARTS * listed_tokens_per_s else None
