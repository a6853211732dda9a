"""Publish the findings of this gateway's audits under its own identity."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
import structlog
from sqlalchemy.exc import SQLAlchemyError

from market.audits.audit_target import AuditTarget
from market.audits.probe_store import ProbeStore
from market.errors import MarketError
from market.network.identity import OwnIdentity
from market.protocol.audits.evidence import digest_of, evidence_of
from market.protocol.audits.findings import FINDINGS_MAX, LASTS_MS, AuditFinding, Findings, page_of
from market.protocol.audits.verdicts import Case, decide
from market.protocol.records.envelope import Record

log = structlog.get_logger(__name__)

EVERY_S = 60.0

Publish = Callable[[Sequence[Record]], Awaitable[Any]]


class FindingsPublisher:
    """Publish what has changed, and everything again before it expires. One event loop owns it."""

    def __init__(
        self,
        own: OwnIdentity,
        probe_store: ProbeStore,
        publish: Publish,
        now_ms: Callable[[], int],
        every_s: float = EVERY_S,
    ) -> None:
        self._own = own
        self._probe_store = probe_store
        self._publish = publish
        self._now_ms = now_ms
        self._every_s = every_s
        self._published: dict[str, tuple[bytes, int]] = {}

    async def run(self) -> None:
        """Publish until cancelled."""
        while True:
            try:
                await self.tell()
            except (SQLAlchemyError, MarketError, OSError) as error:
                log.warning("auditing.findings_not_sent", reason=type(error).__name__)
            await asyncio.sleep(self._every_s)

    async def tell(self) -> None:
        """Publish the pages that have changed since they were last published."""
        if records := await asyncio.to_thread(self._news):
            await self._publish([*self._own.statements, *records])

    def _news(self) -> list[Record]:
        now_ms, records = self._now_ms(), []
        for name, findings in pages_of(self._probe_store, self._own.id, now_ms).items():
            content = self._own.signer.public_key + msgspec.json.encode(findings)
            known, published_ms = self._published.get(name, (b"", 0))
            if known == content and now_ms - published_ms < LASTS_MS // 2:
                continue
            self._published[name] = content, now_ms
            records.append(self._own.say("findings", name, now_ms, findings, now_ms, now_ms + LASTS_MS))
        return records


def pages_of(probe_store: ProbeStore, auditor: str, now_ms: int) -> dict[str, Findings]:
    """Return all findings by the record that contains them: suspended sellers first, then the newest."""
    pages: dict[str, list[AuditFinding]] = {}
    for target, case in probe_store.targets():
        if finding := _finding(probe_store, target, case, auditor, now_ms):
            pages.setdefault(page_of(target.seller), []).append(finding)
    for found in pages.values():
        found.sort(key=lambda each: (not each.is_suspended, -each.made_ms))
    return {name: Findings(tuple(found[:FINDINGS_MAX])) for name, found in sorted(pages.items())}


def _finding(
    probe_store: ProbeStore, target: AuditTarget, case: Case, auditor: str, now_ms: int
) -> AuditFinding | None:
    """Return the finding; None if there is nothing that others should rely on."""
    audits = probe_store.audits(target.id)
    is_suspended = decide(case).action in ("suspend", "forfeit")
    evidence = evidence_of(case, audits, auditor, now_ms)
    if not audits or not (is_suspended or evidence):
        return None
    facts = {
        "seller": target.seller,
        "model": target.model,
        "weights": target.weights,
        "quantization": target.quantization,
        "tier": evidence.tier if evidence else "declared",
        "is_suspended": is_suspended,
        "audits": case.stakes.audits,
        "made_ms": audits[-1].made_ms,
        "digest": digest_of(audits),
    }
    return msgspec.convert(facts, AuditFinding)
