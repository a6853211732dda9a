"""Place audits among the ordinary requests to a listing, at the rate it deserves, and keep their results.

An audit comes some time after the request that it was drawn for, so that the seller cannot recognize it.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from typing import Any

import structlog
from sqlalchemy.exc import SQLAlchemyError

from gateway.auditing.asking import Asking, Heard, Unanswered
from gateway.auditing.probes import Probe, plain_request, sold_as
from gateway.auditing.shelf import Shelf
from gateway.auditing.wares import Ware
from market.auditing.rates import audit_rate
from market.auditing.replay import outliers
from market.auditing.sequential import Kind
from market.auditing.verdicts import (
    Audit,
    Case,
    Decision,
    after_anomaly,
    after_audit,
    after_request,
    decide,
    kind_wanted,
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
# Ordinary requests rarely ask for log probabilities, so asking always would mark audits.
_UNTOLD_SHARE = 0.25

Chance = Callable[[], float]


Tell = Callable[[Ware, Audit, Decision], None]


class Auditor:
    """One event loop owns it. `tell` is called with every audit and its consequence.

    `left_nano` returns what audits may still cost, in nano-USD, and is slow. `peers` returns others' listings of
    the same weights, `prompt` the next prompt for all of them.
    """

    def __init__(
        self,
        asking: Asking,
        shelf: Shelf,
        tell: Tell,
        *,
        chance: Chance,
        now_ms: Callable[[], int],
        pause_s_max: float = PAUSE_S_MAX,
        left_nano: Callable[[], int] = lambda: CEILING_NANO,
        peers: Callable[[Ware], Sequence[Ware]] = lambda _: (),
        prompt: Callable[[], str] = lambda: "",
    ) -> None:
        self._asking = asking
        self._shelf = shelf
        self._tell = tell
        self._chance = chance
        self._now_ms = now_ms
        self._pause_s_max = pause_s_max
        self._left_nano = left_nano
        self._peers = peers
        self._prompt = prompt
        # A listing's case is read, updated and written back by one task at a time.
        self._writing = asyncio.Lock()
        self._due: asyncio.Queue[Ware] = asyncio.Queue(WAITING_MAX)

    async def served(self, ware: Ware, *, is_odd: bool = False) -> None:
        """Count an ordinary request; `is_odd` if something about its answer was (padding, pace, latency)."""
        async with self._writing:
            rate = await asyncio.to_thread(self._count, ware, is_odd)
        # Audits are a share of all requests, and the others are counted here.
        if self._chance() < rate / (1 - rate) and not self._due.full():
            self._due.put_nowait(ware)

    async def run(self) -> None:
        """Make audits, one after the other, until cancelled."""
        while True:
            ware = await self._due.get()
            await asyncio.sleep(self._chance() * self._pause_s_max)
            try:
                await self._audit(ware)
            except SQLAlchemyError as error:
                log.warning("auditing.failing", reason=type(error).__name__)
            self._due.task_done()

    async def idle(self) -> None:
        """Return once no audit is due."""
        await self._due.join()

    async def _audit(self, ware: Ware) -> None:
        probe = await asyncio.to_thread(self._drawn, ware)
        left_nano = await asyncio.to_thread(self._left_nano)
        if probe is None or self._chance() < COMPARED_SHARE:
            compared = _one_of_each_owner((ware, *self._peers(ware)))[:COMPARED_MAX]
            if len(compared) >= COMPARED_MIN and left_nano >= len(compared) * CEILING_NANO:
                await self.compare(compared, self._prompt())
                return
        ceiling_nano = min(CEILING_NANO, left_nano)
        if probe is None or ceiling_nano <= 0:
            return
        try:
            heard = await self._asking.ask(ware.listing, self._request(ware, probe), ceiling_nano)
        except Unanswered as error:
            log.info("auditing.unanswered", seller=ware.seller[:16], reason=str(error))
            return
        async with self._writing:
            audit, decision = await asyncio.to_thread(self._judge, ware, probe, heard)
        self._tell(ware, audit, decision)

    def _request(self, ware: Ware, probe: Probe) -> Mapping[str, Any]:
        request = probe.request(ware.model, int(self._chance() * 1_000))
        is_told = ware.tells and probe.has_reference and self._chance() >= _UNTOLD_SHARE
        return {**request, "logprobs": True} if is_told else request

    def _count(self, ware: Ware, is_odd: bool) -> float:
        """Count a request; return the share of audits that the listing now deserves."""
        case = after_request(self._case(ware))
        if is_odd:
            case = after_anomaly(case)
        self._shelf.put(ware, case)
        return audit_rate(case.watched)

    async def compare(self, wares: Sequence[Ware], prompt: str) -> None:
        """Ask sellers of one model, each of another owner, the same; an owner alone with its answer has failed.

        Nothing follows if fewer than three answered, or if their answers have no majority.
        """
        request = plain_request(wares[0].model, prompt)
        heard: dict[str, tuple[Ware, Heard]] = {}
        for ware in wares:
            try:
                answer = await self._asking.ask(ware.listing, {**request, "model": ware.model}, CEILING_NANO)
            except Unanswered as error:
                log.info("auditing.unanswered", seller=ware.seller[:16], reason=str(error))
                continue
            heard[ware.owner] = ware, answer
        alone = outliers({owner: answer.text for owner, (_, answer) in heard.items()}) if len(heard) > 2 else None
        if alone is None:
            return
        probe = sha256(prompt.encode()).hexdigest()
        for owner, (ware, answer) in heard.items():
            failed = ("several others agree on another answer",) if owner in alone else ()
            async with self._writing:
                audit = self._seen("redundancy", probe, answer, failed)
                decision = await asyncio.to_thread(self._note, ware, audit)
            self._tell(ware, audit, decision)

    def _judge(self, ware: Ware, probe: Probe, heard: Heard) -> tuple[Audit, Decision]:
        kind, failed = probe.look(heard.text, heard.told)
        self._shelf.note_use(probe.id, ware.owner, has_failed=bool(failed))
        audit = self._seen(kind, probe.id, heard, failed)
        return audit, self._note(ware, audit)

    def _seen(self, kind: Kind, probe: str, heard: Heard, failed: tuple[str, ...]) -> Audit:
        return Audit(kind, probe, self._now_ms(), sha256(heard.text.encode()).hexdigest(), failed)

    def _note(self, ware: Ware, audit: Audit) -> Decision:
        case = after_audit(after_request(self._case(ware)), audit)
        self._shelf.put(ware, case, audit)
        decision = decide(case)
        if audit.has_failed:
            log.warning("auditing.failed", seller=ware.seller[:16], kind=audit.kind, action=decision.action)
        return decision

    def _drawn(self, ware: Ware) -> Probe | None:
        """Return a little-used probe, of the kind to follow up, and not one that it failed before."""
        case = self._case(ware)
        failed = {audit.probe for audit in case.failed}
        wanted = {"logprob": "canary", "redundancy": "canary"}.get(kind_wanted(case) or "", kind_wanted(case))
        unused = [
            each for each in self._shelf.probes(sold_as(ware.weights, ware.quantization)) if each.id not in failed
        ]
        able = [each for each in unused if each.kind == wanted] or unused
        little_used = able[: max(1, len(able) // 2)]
        return little_used[int(self._chance() * len(little_used))] if little_used else None

    def _case(self, ware: Ware) -> Case:
        return self._shelf.case(ware.id) or new_case(is_probation=ware.is_probation)


def _one_of_each_owner(wares: Sequence[Ware]) -> list[Ware]:
    """Keep one listing per owner: an owner counted twice could decide the common answer alone."""
    owners: dict[str, Ware] = {}
    for ware in wares:
        owners.setdefault(ware.owner, ware)
    return list(owners.values())
