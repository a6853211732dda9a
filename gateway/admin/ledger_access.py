"""The ledger with the party that acts on it: in a running gateway, or in a command beside it."""

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from accounting.ledger.balances import Balance
from accounting.ledger.postings import Posted
from gateway.admin.fields import Facts
from gateway.billing.ledger_service import LedgerService
from gateway.identity.audit import Actor
from gateway.identity.directory import Directory

if TYPE_CHECKING:
    from gateway.billing.payments.payments_service import PaymentsService


@dataclass(frozen=True, slots=True)
class Booked:
    """A journal entry, and what the audit log has of it."""

    posted: Posted
    facts: Facts

    def answer(self) -> Facts:
        return self.facts | {"event": self.posted.event_seq}


@dataclass(frozen=True, slots=True)
class LedgerAccess:
    """`payments_service` is None without payments, and in commands."""

    ledger: LedgerService
    directory: Directory
    actor: Actor
    payments_service: "PaymentsService | None" = None

    async def own_credits(self, user_id: str) -> Balance:
        """Return a user's own credits, also a removed user's. Raises NotFound, DatabaseFailing."""
        await asyncio.to_thread(self.directory.users.ever, user_id)
        return await self.ledger.balance(user_id)

    async def record(self, action: str, target: str, posted: Posted, facts: Facts) -> Booked:
        """Record a booked action in the audit log: once for each `id`, even if it is repeated."""
        add_once = self.directory.audit.add_once
        await asyncio.to_thread(add_once, self.actor, action, target, facts, named_by="id")
        return Booked(posted, facts)
