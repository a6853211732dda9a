"""Place audits among the ordinary requests to a listing, at the rate it deserves, and keep their results.

An audit comes some time after the request that it was drawn for, so that the seller cannot recognize it.
"""

import asyncio
from collections.abc import Callable, Sequence
from hashlib import sha256

import structlog
from sqlalchemy.exc import SQLAlchemyError

from market.audits.audit_client import AuditClient, Unanswered
from market.audits.audit_target import AuditTarget
from market.audits.probe_store import ProbeStore
from market.audits.probes import Probe, plain_request, sold_as
from market.protocol.audits.canaries import failings
from market.protocol.audits.rates import audit_rate
from market.protocol.audits.replay import outliers
from market.protocol.audits.sequential import Kind
from market.protocol.audits.verdicts import (
    Audit,
    Case,
    Decision,
    after_anomaly,
    after_audit,
    after_request,
    decide,
    new_case,
)

log = structlog.get_logger(__name__)

WAITING_MAX = 64
COMPARED_MIN, COMPARED_MAX = 3, 5
COMPARED_SHARE = 0.1
"""The share of audits that compare owners although there are probes; without probes all of them do."""
PAUSE_S_MAX = 60.0
CEILING_NANO = 5_000_000
"""Half a cent: no audit costs more."""

Chance = Callable[[], float]


Tell = Callable[[AuditTarget, Audit, Decision], None]


class Auditor:
    """Draws, makes and judges audits.

    One event loop owns it. `tell` is called with every audit and its consequence.

    `left_nano` returns what audits may still cost, in nano-USD, and is slow. `peers` returns others' listings of
    the same weights, `prompt` the next prompt for all of them.
    """

    def __init__(
        self,
        asking: AuditClient,
        probe_store: ProbeStore,
        tell: Tell,
        *,
        chance: Chance,
        now_ms: Callable[[], int],
        pause_s_max: float = PAUSE_S_MAX,
        left_nano: Callable[[], int] = lambda: CEILING_NANO,
        peers: Callable[[AuditTarget], Sequence[AuditTarget]] = lambda _: (),
        prompt: Callable[[], str] = lambda: "",
    ) -> None:
        self._asking = asking
        self._probe_store = probe_store
        self._tell = tell
        self._chance = chance
        self._now_ms = now_ms
        self._pause_s_max = pause_s_max
        self._left_nano = left_nano
        self._peers = peers
        self._prompt = prompt
        # A listing's case is read, updated and written back by one task at a time.
        self._writing = asyncio.Lock()
        self._due: asyncio.Queue[AuditTarget] = asyncio.Queue(WAITING_MAX)

    async def served(self, target: AuditTarget, *, is_odd: bool = False) -> None:
        """Count an ordinary request; `is_odd` if its answer was padded or its receipt inflated."""
        async with self._writing:
            rate = await asyncio.to_thread(self._count, target, is_odd)
        # Audits are a share of all requests, and the others are counted here.
        if self._chance() < rate / (1 - rate) and not self._due.full():
            self._due.put_nowait(target)

    async def run(self) -> None:
        """Make audits, one after the other, until cancelled."""
        while True:
            target = await self._due.get()
            await asyncio.sleep(self._chance() * self._pause_s_max)
            try:
                await self._audit(target)
            except SQLAlchemyError as error:
                log.warning("auditing.failing", reason=type(error).__name__)
            self._due.task_done()

    async def idle(self) -> None:
        """Return once no audit is due."""
        await self._due.join()

    async def _audit(self, target: AuditTarget) -> None:
        probe = await asyncio.to_thread(self._drawn, target)
        left_nano = await asyncio.to_thread(self._left_nano)
        if probe is None or self._chance() < COMPARED_SHARE:
            compared = _one_of_each_owner((target, *self._peers(target)))[:COMPARED_MAX]
            if len(compared) >= COMPARED_MIN and left_nano >= len(compared) * CEILING_NANO:
                await self.compare(compared, self._prompt())
                return
        ceiling_nano = min(CEILING_NANO, left_nano)
        if probe is None or ceiling_nano <= 0:
            return
        request = probe.request(target.model, int(self._chance() * 1_000))
        try:
            text = await self._asking.ask(target.listing, request, ceiling_nano)
        except Unanswered as error:
            log.info("auditing.unanswered", seller=target.seller[:16], reason=str(error))
            return
        async with self._writing:
            audit, decision = await asyncio.to_thread(self._judge, target, probe, text)
        self._tell(target, audit, decision)

    def _count(self, target: AuditTarget, is_odd: bool) -> float:
        """Count a request; return the share of audits that the listing now deserves."""
        case = after_request(self._case(target))
        if is_odd:
            case = after_anomaly(case)
        self._probe_store.put(target, case)
        return audit_rate(case.watched)

    async def compare(self, targets: Sequence[AuditTarget], prompt: str) -> None:
        """Ask sellers of one model, each of another owner, the same; an owner alone with its answer has failed.

        Nothing follows if fewer than three answered, or if their answers have no majority.
        """
        request = plain_request(targets[0].model, prompt)
        heard: dict[str, tuple[AuditTarget, str]] = {}
        for target in targets:
            try:
                answer = await self._asking.ask(target.listing, {**request, "model": target.model}, CEILING_NANO)
            except Unanswered as error:
                log.info("auditing.unanswered", seller=target.seller[:16], reason=str(error))
                continue
            heard[target.owner] = target, answer
        alone = outliers({owner: answer for owner, (_, answer) in heard.items()}) if len(heard) > 2 else None
        if alone is None:
            return
        probe = sha256(prompt.encode()).hexdigest()
        for owner, (target, answer) in heard.items():
            failed = ("several others agree on another answer",) if owner in alone else ()
            async with self._writing:
                audit = self._seen("redundancy", probe, answer, failed)
                decision = await asyncio.to_thread(self._note, target, audit)
            self._tell(target, audit, decision)

    def _judge(self, target: AuditTarget, probe: Probe, text: str) -> tuple[Audit, Decision]:
        failed = failings(probe.canary, text)
        self._probe_store.note_use(probe.id, target.owner, has_failed=bool(failed))
        audit = self._seen("canary", probe.id, text, failed)
        return audit, self._note(target, audit)

    def _seen(self, kind: Kind, probe: str, text: str, failed: tuple[str, ...]) -> Audit:
        return Audit(kind, probe, self._now_ms(), sha256(text.encode()).hexdigest(), failed)

    def _note(self, target: AuditTarget, audit: Audit) -> Decision:
        case = after_audit(after_request(self._case(target)), audit)
        self._probe_store.put(target, case, audit)
        decision = decide(case)
        if audit.has_failed:
            log.warning("auditing.failed", seller=target.seller[:16], kind=audit.kind, action=decision.action)
        return decision

    def _drawn(self, target: AuditTarget) -> Probe | None:
        """Return a little-used probe that it did not fail before."""
        failed = {audit.probe for audit in self._case(target).failed}
        unused = [
            each
            for each in self._probe_store.probes(sold_as(target.weights, target.quantization))
            if each.id not in failed
        ]
        little_used = unused[: max(1, len(unused) // 2)]
        return little_used[int(self._chance() * len(little_used))] if little_used else None

    def _case(self, target: AuditTarget) -> Case:
        return self._probe_store.case(target.id) or new_case(is_probation=target.is_probation)


def _one_of_each_owner(targets: Sequence[AuditTarget]) -> list[AuditTarget]:
    """Keep one listing per owner: an owner counted twice could decide the common answer alone."""
    owners: dict[str, AuditTarget] = {}
    for target in targets:
        owners.setdefault(target.owner, target)
    return list(owners.values())
