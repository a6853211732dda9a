"""The gateway's access to the ledger: holds before paid work, captures after it, a usage row for every request."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, TypeVar

import structlog
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from accounting.chart import user_paid
from accounting.errors import DatabaseFailing, LedgerBroken, LedgerError
from accounting.ledger.balances import Balance, balance
from accounting.ledger.health import BrokenRule
from accounting.ledger.poster import Poster
from accounting.ledger.postings import Posted, Posting
from accounting.ledger.scope import Witness
from accounting.ledger.writer import Writer
from accounting.payments.errors import PayerFrozen
from accounting.payments.ledger import Ledger
from accounting.rules import grants
from accounting.rules.held import Hold, Payer
from accounting.spending.credit_grants import CreditGrant, CreditGrants
from accounting.spending.leases import Leases
from accounting.spending.reaper import Reaper
from gateway.billing.batch_settlement import ANSWER_TIMEOUT_S, Settler
from gateway.billing.inspection import Condition, Inspection

if TYPE_CHECKING:
    from accounting.proofs.blocks import Checkpoint
    from accounting.proofs.maker import BlockMaker, Unproven
    from accounting.replication.shared import SharedLedger

log = structlog.get_logger(__name__)

REAP_EVERY_S = 5.0
T = TypeVar("T")


class LedgerService:
    """Owns the threads of the poster and of the leases, and the tasks that watch over the ledger.

    `frozen_why` returns from memory why a user may not spend for now. The module that freezes payers sets it.
    """

    def __init__(
        self,
        read: Callable[[], Session],
        write: Callable[[], Session],
        shared: "SharedLedger | None" = None,
        proofs: "BlockMaker | None" = None,
    ) -> None:
        self._read = read
        self._proofs = proofs
        self._shared = shared
        self._poster = Poster(write, booking=shared)
        self.leases = Leases(self._poster, read)
        self._credit_grants = CreditGrants(write)
        self._reaper = Reaper(self._poster, read)
        self.settler = Settler(self._poster, self.leases, self._look)
        self.inspection = Inspection(self._look, self._witness)
        self.frozen_why: Callable[[str], str | None] = _no_user_is_frozen
        self.unkept_why: Callable[[], str | None] = _nothing_is_wrong
        """Return why booked entries cannot be stored now, or None; from memory."""
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        if self._shared:
            self._shared.start(self._poster.submit)
        self._poster.start()
        self.leases.start()
        if self._proofs:
            self._proofs.start()
        self._tasks.append(asyncio.create_task(self._reap(), name="hold reaper"))

    def inspect(self) -> None:
        """Check every rule of the ledger in the background, periodically; a broken rule stops all spending."""
        self._tasks.append(self.inspection.begin())

    async def stop(self) -> None:
        """Stop; everything submitted is then on disk."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.inspection.stop()
        await asyncio.to_thread(self.leases.stop, ANSWER_TIMEOUT_S)
        if not await asyncio.to_thread(self._poster.stop, ANSWER_TIMEOUT_S):
            log.error("ledger closed with entries not posted", seconds=ANSWER_TIMEOUT_S)
        if self._proofs:
            await asyncio.to_thread(self._proofs.stop, ANSWER_TIMEOUT_S)
        if self._shared:
            await asyncio.to_thread(self._shared.stop)

    @property
    def leads(self) -> bool:
        """Return whether this gateway writes the ledger; a gateway with its own ledger always does."""
        return self._shared.leads if self._shared else True

    @property
    def epoch(self) -> int:
        """Return how often a shared ledger has changed its writer; 0 for the ledger of one gateway."""
        return self._shared.epoch if self._shared else 0

    @property
    def dropped_groups(self) -> int:
        """Return how many groups of entries of other gateways this one has dropped because of their age."""
        return self._shared.dropped if self._shared else 0

    @property
    def checkpoint(self) -> "Checkpoint | None":
        """Return the newest block that this gateway has ever seen, at most a second old."""
        return self._proofs.checkpoint if self._proofs else None

    @property
    def unproven(self) -> "Unproven | None":
        """Return the journal entries in no block, at most a second old; None if this process makes no blocks."""
        return self._proofs.unproven if self._proofs else None

    @property
    def waiting(self) -> int:
        return self._poster.waiting

    @property
    def writer(self) -> Writer:
        """Return the writer of this gateway's journal entries."""
        return self._poster

    async def book(self, posting: Posting) -> Posted:
        """Book one journal entry.

        Raises PostingDenied, PostingInvalid, LedgerUnavailable; DatabaseFailing if the ledger answers too late.
        """
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                return await asyncio.wrap_future(self._poster.submit(posting))
        except TimeoutError:
            raise DatabaseFailing("the ledger did not answer in time") from None

    async def look(self, query: Callable[[Session], T]) -> T:
        """Run a query in a thread. Raises DatabaseFailing."""
        return await asyncio.to_thread(self._look, query)

    async def hold(self, request_id: str, payer: Payer, amount_nano: int) -> Hold:
        """Reserve credits, in memory if this process's spending reservation has them.

        It lasts as long as its requests.

        Raises InsufficientCredit, AmountInvalid, LedgerUnavailable (LedgerBroken among them), PayerFrozen. Raises
        DatabaseFailing if the ledger answers too late.
        """
        await self.inspection.looked()
        self._check(payer.user_id)
        placed = self.leases.hold(request_id, payer, amount_nano)
        if isinstance(placed, Hold):
            return placed
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                held = await asyncio.wrap_future(placed)
            # The user may have been frozen while this waited for the ledger.
            self._check(payer.user_id)
        except TimeoutError:
            placed.add_done_callback(self._give_back)
            raise DatabaseFailing("the ledger did not answer in time") from None
        except (asyncio.CancelledError, LedgerBroken, PayerFrozen):
            placed.add_done_callback(self._give_back)
            raise
        return held

    async def grow(self, held: Hold, amount_nano: int) -> Hold:
        """Grow a running request's hold to `amount_nano` in total. A cancelled caller need not give anything back.

        Raises InsufficientCredit, AmountInvalid, LedgerUnavailable (LedgerBroken among them), PayerFrozen. Raises
        DatabaseFailing if the ledger answers too late.
        """
        self._check(held.user_id)
        placed = self.leases.grow(held, amount_nano)
        if isinstance(placed, Hold):
            return placed
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                return await asyncio.wrap_future(placed)
        except TimeoutError:
            raise DatabaseFailing("the ledger did not answer in time") from None

    def _check(self, user_id: str) -> None:
        """Check that funds may be reserved for this user now.

        Raises LedgerBroken, PayerFrozen, and DatabaseFailing while what is booked cannot be kept.
        """
        self.inspection.check()
        if trouble := self.unkept_why():
            raise DatabaseFailing(trouble)
        if why := self.frozen_why(user_id):
            raise PayerFrozen(user_id, why)

    def _give_back(self, placed: "Future[Hold]") -> None:
        """Release a hold whose caller stopped waiting."""
        if placed.exception() is None:
            self.leases.end(placed.result(), 0)

    async def credit(self, credit_id: str, user_id: str, amount_nano: int, reason: str) -> Posted:
        """Credit the operator's own money, once per `credit_id`. The user's debt is deducted first."""
        posting = grants.manual_credit(credit_id, user_id, amount_nano, reason)
        posted = await self.book(posting)
        await self.settle_debt(posting.idem_key, user_id)
        return posted

    async def settle_debt(self, cause: str, user_id: str) -> None:
        """Pay a user's debt from own credits that arrived under the key `cause`. Raises LedgerUnavailable."""
        await asyncio.to_thread(Ledger(self._poster, self._read).settle_debt, cause, user_id)

    async def credit_pool(self, credit_id: str, pool_id: str, amount_nano: int, reason: str) -> Posted:
        """Credit an organization balance, like `credit`; its id is the organization's."""
        posted = await self.book(grants.pool_credit(credit_id, pool_id, amount_nano, reason))
        self.leases.funding_lookup.forget_all()
        return posted

    async def grant(self, credit_grant: CreditGrant) -> Posted:
        """Give a user promotional credits, once per credit grant.

        Raises AccountUnknown, AmountInvalid, PostingInvalid, IdempotencyConflict, LedgerUnavailable.
        """
        posting = await asyncio.to_thread(self._credit_grants.write_down, credit_grant)
        posted = await self.book(posting)
        self.leases.funding_lookup.forget_all()
        return posted

    async def balance(self, user_id: str) -> Balance:
        """Raises AccountUnknown, DatabaseFailing."""
        return await asyncio.to_thread(self._look, lambda session: _paid(session, user_id))

    async def findings(self, *, deep: bool) -> list[BrokenRule]:
        """Return the ledger's broken rules. A deep check also decides on spending. Raises DatabaseFailing."""
        return await (self.inspection.inspect() if deep else self.inspection.glance())

    async def condition(self) -> Condition:
        """Return the ledger's state, cached for a moment."""
        return await self.inspection.condition()

    def _look(self, query: Callable[[Session], T]) -> T:
        try:
            with self._read() as session:
                return query(session)
        except SQLAlchemyError as error:
            raise DatabaseFailing(f"the ledger cannot be read: {type(error).__name__}") from error

    def _witness(self) -> Witness:
        return self._proofs.witness if self._proofs else Witness()

    async def _reap(self) -> None:
        while True:
            await asyncio.sleep(REAP_EVERY_S)
            try:
                reaped = await asyncio.to_thread(self._reaper.sweep)
            except (LedgerError, TimeoutError) as error:
                log.warning("expired holds not released yet", reason=str(error))
                continue
            except Exception:
                # The task's edge: it survives any error of one sweep.
                log.exception("expired holds not released")
                continue
            if reaped:
                log.warning("expired holds released", count=reaped)


def _no_user_is_frozen(_: str) -> str | None:
    return None


def _nothing_is_wrong() -> str | None:
    return None


def _paid(session: Session, user_id: str) -> Balance:
    return balance(session, user_paid(user_id))
