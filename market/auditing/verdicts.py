"""What follows from audits: more of them, no more requests, or the seller's unpaid earnings are lost. Pure.

Nothing here says that a model is the one. It says how improbable an honest seller is behind what was seen, and
that needs canaries that are right: who loses money is asked again beside sellers or an engine known to be honest.
"""

from dataclasses import dataclass, replace
from typing import Literal

from market.auditing.rates import ANOMALY_AUDITS, FAILURE_AUDITS, Watched
from market.auditing.sequential import Kind, Stakes
from market.matching.track import Track

FAILED_MIN = 3
"""On so many different probes it must have failed before anything is taken from it."""
_REASONS_MAX = 16

Action = Literal["none", "watch", "suspend", "forfeit"]


@dataclass(frozen=True, slots=True)
class Audit:
    """One look at a listing: which probe, when by the auditor's clock, and what was wrong; nothing if it passed.

    `transcript` is the hash of the answer that its receipt is signed for, in hex.
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
    """What is to be done and why, in sentences for the seller."""

    action: Action
    reasons: tuple[str, ...] = ()


def new_case(*, is_probation: bool) -> Case:
    """Of a listing that has just appeared, or is another model or on another engine from now on."""
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
    """Padding, an odd pace, another latency for audits: no failure, but it is looked at more closely now."""
    forced_audits = max(ANOMALY_AUDITS, case.watched.forced_audits)
    return replace(case, watched=replace(case.watched, forced_audits=forced_audits))


def kind_wanted(case: Case) -> Kind | None:
    """What kind of audit is next: the one that failed last while that is followed up, None where any will do."""
    return case.failed[-1].kind if case.failed and case.watched.forced_audits else None


def after_confirmation(case: Case, probe: str) -> Case:
    """Honest engines pass this probe today, so that who failed it has failed."""
    probes = frozenset(audit.probe for audit in case.failed)
    return replace(case, confirmed=(case.confirmed | {probe}) & probes)


def decide(case: Case) -> Decision:
    """The reasons name probes only by their kind: a seller is not told which requests were audits.

    Being unlike others takes nothing from anybody by itself: who has many names could be most of the others.
    """
    stakes = case.stakes
    has_failed_alone = any(each.kind != "redundancy" for each in case.failed)
    if not stakes.is_proof or not has_failed_alone:
        if case.watched.forced_audits:
            return Decision("watch", ("audits failed, or something was odd: more are made",))
        return Decision("none")
    found = (f"an honest seller comes to this with a probability below {stakes.honest_probability_max:.2g}",)
    reasons = found + tuple(f"{each.kind}: {'; '.join(each.failings)}" for each in case.failed)
    is_sure = len(case.confirmed) >= FAILED_MIN
    return Decision("forfeit" if is_sure else "suspend", reasons)


def audited(track: Track, audit: Audit, now_s: float) -> Track:
    """What is known of a seller for matching, with this audit in it; by the clock of its other tallies."""
    return replace(track, audits=track.audits.after(now_s, is_good=not audit.has_failed))
