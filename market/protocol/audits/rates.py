"""Decide how often a seller is audited, by its status, its record, and what cheating would gain it. Pure."""

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


@dataclass(frozen=True, slots=True)
class Deterrence:
    """Cheating pays unless p*d*F > g*(1 - p*d).

    g is the gain of one request, F the loss when found out, and d the probability that an audit detects it.
    Amounts are in nano-USD. F is the unmatured payable, the reserve, and the profit of future trade.
    """

    gain_nano: int
    forfeit_nano: int
    detection: float

    def holds(self, rate: float) -> bool:
        """Tell whether cheating does not pay if the share `rate` of requests are audits."""
        seen = rate * self.detection
        return seen * self.forfeit_nano > self.gain_nano * (1 - seen)

    @property
    def rate_min(self) -> float:
        """The share of audits from which on cheating does not pay; above 1 if no share is enough."""
        # p*d = g / (F + g) where both sides are equal.
        return self.gain_nano / ((self.forfeit_nano + self.gain_nano) * self.detection)
