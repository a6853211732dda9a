"""What this gateway's audits have found, said under its own identity to whoever trusts it."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
import structlog
from sqlalchemy.exc import SQLAlchemyError

from gateway.auditing.shelf import Shelf
from gateway.auditing.wares import Ware
from gateway.market.identity import OwnIdentity
from market.auditing.evidence import digest_of, evidence_of
from market.auditing.findings import FINDINGS_MAX, LASTS_MS, AuditFinding, Findings, page_of
from market.auditing.verdicts import Case, decide
from market.errors import MarketError
from market.records.envelope import Record

log = structlog.get_logger(__name__)

EVERY_S = 60.0

Publish = Callable[[Sequence[Record]], Awaitable[Any]]


class Telling:
    """Says what has changed, and all of it again before it ends. One event loop owns it."""

    def __init__(
        self, own: OwnIdentity, shelf: Shelf, publish: Publish, now_ms: Callable[[], int], every_s: float = EVERY_S
    ) -> None:
        self._own = own
        self._shelf = shelf
        self._publish = publish
        self._now_ms = now_ms
        self._every_s = every_s
        self._said: dict[str, tuple[bytes, int]] = {}

    async def run(self) -> None:
        """Tell until cancelled."""
        while True:
            try:
                await self.tell()
            except (SQLAlchemyError, MarketError, OSError) as error:
                log.warning("auditing.untold", reason=type(error).__name__)
            await asyncio.sleep(self._every_s)

    async def tell(self) -> None:
        """Publish the pages that are not as they were said last."""
        if records := await asyncio.to_thread(self._news):
            await self._publish([*self._own.statements, *records])

    def _news(self) -> list[Record]:
        now_ms, records = self._now_ms(), []
        for name, findings in pages_of(self._shelf, self._own.id, now_ms).items():
            content = self._own.signer.public_key + msgspec.json.encode(findings)
            known, said_ms = self._said.get(name, (b"", 0))
            if known == content and now_ms - said_ms < LASTS_MS // 2:
                continue
            self._said[name] = content, now_ms
            records.append(self._own.say("findings", name, now_ms, findings, now_ms, now_ms + LASTS_MS))
        return records


def pages_of(shelf: Shelf, auditor: str, now_ms: int) -> dict[str, Findings]:
    """All that there is to say, by the record that it is said in: who was found out first, then the newest."""
    pages: dict[str, list[AuditFinding]] = {}
    for ware, case in shelf.wares():
        if finding := _finding(shelf, ware, case, auditor, now_ms):
            pages.setdefault(page_of(ware.seller), []).append(finding)
    for found in pages.values():
        found.sort(key=lambda each: (not each.is_suspended, -each.made_ms))
    return {name: Findings(tuple(found[:FINDINGS_MAX])) for name, found in sorted(pages.items())}


def _finding(shelf: Shelf, ware: Ware, case: Case, auditor: str, now_ms: int) -> AuditFinding | None:
    """None where nothing was found that anybody should go by."""
    audits = shelf.audits(ware.id)
    is_suspended = decide(case).action in ("suspend", "forfeit")
    evidence = evidence_of(case, audits, auditor, now_ms)
    if not audits or not (is_suspended or evidence):
        return None
    facts = {
        "seller": ware.seller,
        "model": ware.model,
        "weights": ware.weights,
        "quantization": ware.quantization,
        "tier": evidence.tier if evidence else "declared",
        "is_suspended": is_suspended,
        "audits": case.stakes.audits,
        "made_ms": audits[-1].made_ms,
        "digest": digest_of(audits),
    }
    return msgspec.convert(facts, AuditFinding)
