"""Decide what follows from audits: more audits, no more requests, or the loss of unpaid earnings. Pure.

No result says that a model is the listed one. It says how improbable an honest seller is, given what was seen.
That needs correct canaries: before a seller loses money, it is tested again beside sellers or an engine known to
be honest.
"""

from dataclasses import dataclass, replace
from typing import Literal

from market.protocol.audits.rates import ANOMALY_AUDITS, FAILURE_AUDITS, Watched
from market.protocol.audits.sequential import Kind, Stakes

FAILED_MIN = 3
"""A seller must fail this many different probes before it loses any earnings."""
_REASONS_MAX = 16

Action = Literal["none", "watch", "suspend", "forfeit"]


@dataclass(frozen=True, slots=True)
class Audit:
    """One audit of a listing: its probe, its time by the auditor's clock, and the failures; empty if it passed.

    `transcript` is the hash of the answer in its signed receipt, in hex.
    """

    kind: Kind
    probe: str
    made_ms: int
    transcript: str
    failings: tuple[str, ...] = ()

    @property
    def has_failed(self) -> bool:
        return bool(self.failings)


@dataclass(frozen=True, slots=True)
class Case:
    """A listing under audit. `failed` has the newest failures, `confirmed` the probes that honest engines pass."""

    watched: Watched
    failed: tuple[Audit, ...] = ()
    confirmed: frozenset[str] = frozenset()

    @property
    def stakes(self) -> Stakes:
        return self.watched.stakes


@dataclass(frozen=True, slots=True)
class Decision:
    """An action and its reasons, in sentences for the seller."""

    action: Action
    reasons: tuple[str, ...] = ()


def new_case(*, is_probation: bool) -> Case:
    """Return the case of a listing that has just appeared, or has changed its model or engine."""
    return Case(Watched(0, is_probation, Stakes()))


def after_request(case: Case) -> Case:
    return replace(case, watched=replace(case.watched, requests=case.watched.requests + 1))


def after_audit(case: Case, audit: Audit) -> Case:
    watched = replace(
        case.watched,
        stakes=case.stakes.after(audit.kind, has_failed=audit.has_failed),
        forced_audits=FAILURE_AUDITS if audit.has_failed else max(0, case.watched.forced_audits - 1),
    )
    failed = (*case.failed, audit)[-_REASONS_MAX:] if audit.has_failed else case.failed
    return replace(case, watched=watched, failed=failed)


def after_anomaly(case: Case) -> Case:
    """Audit more often after padding, an odd speed or another latency for audits: anomalies, but no failures."""
    forced_audits = max(ANOMALY_AUDITS, case.watched.forced_audits)
    return replace(case, watched=replace(case.watched, forced_audits=forced_audits))


def after_confirmation(case: Case, probe: str) -> Case:
    """Note that honest engines pass this probe today, so a seller that failed it has failed."""
    probes = frozenset(audit.probe for audit in case.failed)
    return replace(case, confirmed=(case.confirmed | {probe}) & probes)


def decide(case: Case) -> Decision:
    """Decide what to do. The reasons name only the kinds of audits: a seller must not learn which requests were
    audits.

    Differing from others has no consequence by itself: a party with many names could be most of the others.
    """
    stakes = case.stakes
    has_failed_alone = any(each.kind != "redundancy" for each in case.failed)
    if not stakes.is_proof or not has_failed_alone:
        if case.watched.forced_audits:
            return Decision("watch", ("audits failed or found an anomaly, so more are made",))
        return Decision("none")
    found = (f"the probability of this result for an honest seller is below {stakes.honest_probability_max:.2g}",)
    reasons = found + tuple(f"{each.kind}: {'; '.join(each.failings)}" for each in case.failed)
    is_sure = len(case.confirmed) >= FAILED_MIN
    return Decision("forfeit" if is_sure else "suspend", reasons)
