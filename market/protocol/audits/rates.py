"""Decide how often a seller is audited, by its status and its record. Pure."""

from dataclasses import dataclass

from market.protocol.audits.sequential import Stakes

PROBATION_RATE = 0.05
TRUSTED_RATE = 0.01
FIRST_RATE = 0.2
"""For the first three hundred requests of a listing, and again after it changes its model or engine."""
FORCED_RATE = 0.5
"""After a failure or an anomaly."""
FIRST_REQUESTS = 300
FAILURE_AUDITS = 80
"""Further audits after each failure. A seller that cheats with every tenth request fails again within them."""
ANOMALY_AUDITS = 8
"""Further audits after an anomaly that is no failure: padding, an odd pace, another latency for audits."""


@dataclass(frozen=True, slots=True)
class Watched:
    """The known history of a listing: requests since it was declared, and audits that anomalies still require."""

    requests: int
    is_probation: bool
    stakes: Stakes
    forced_audits: int = 0


def audit_rate(watched: Watched) -> float:
    """Return the share of requests to this listing that are audits."""
    if watched.forced_audits > 0:
        return FORCED_RATE
    if watched.requests < FIRST_REQUESTS:
        return FIRST_RATE
    return PROBATION_RATE if watched.is_probation else TRUSTED_RATE
