"""State what an auditor may say in a listing: the tier that its passed audits reach, and a hash of them. Pure.

`declared` is the seller's word, `canary` answers to known requests, `redundancy` the same answers as other sellers'.
`logprob`, `toploc` and `tee` are reserved. None of them proves a model.
"""

import hashlib
from collections.abc import Sequence

from market.protocol.audits.verdicts import Audit, Case, decide
from market.protocol.listings.listing import TIERS, Evidence, Tier
from market.protocol.records.canonical import canonical

PASSED_MIN = 10
LASTS_MS = 14 * 86_400_000
"""Older findings say nothing about today."""


def tier_found(audits: Sequence[Audit], now_ms: int) -> Tier:
    """Return the highest tier with ten passed audits in the last two weeks.

    A higher tier counts for lower ones.
    """
    passed: list[Tier] = [
        each.kind for each in audits if not each.has_failed and 0 <= now_ms - each.made_ms < LASTS_MS
    ]
    reached = (tier for tier in TIERS if _count(passed, tier) >= PASSED_MIN)
    return max(reached, key=TIERS.index, default="declared")


def evidence_of(case: Case, audits: Sequence[Audit], auditor: str, now_ms: int) -> Evidence | None:
    """Return what the auditor `auditor` (an identity, in hex) says of a listing now; None if that is nothing."""
    tier = tier_found(audits, now_ms)
    if tier == "declared" or decide(case).action != "none":
        return None
    return Evidence(tier, auditor, now_ms, digest_of(audits))


def digest_of(audits: Sequence[Audit]) -> str:
    """Return the hash of the findings, in hex. Anyone who sees the audits later can check it."""
    found = [[each.kind, each.probe, each.made_ms, each.transcript, list(each.failings)] for each in audits]
    return hashlib.sha256(canonical(found)).hexdigest()


def _count(passed: Sequence[Tier], tier: Tier) -> int:
    return sum(TIERS.index(each) >= TIERS.index(tier) for each in passed)
