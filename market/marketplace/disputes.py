"""Handle disputes: buyer and seller signed different counts of one request, and the marketplace counts again.

The party that opens a dispute pays a fee into a hold, and loses it with the dispute. Each side submits the text
that it says was delivered, or shows the prompt. The marketplace decides with both texts, with the prompt if only
that is denied, or after a day (`market.protocol.audits.disputes`). Any amount beyond what the buyer has signed is
then due like everything else.
"""

from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy import func, or_, select
from sqlalchemy.orm import Session

from accounting import chart
from accounting.metering.delivered import TokenCounter
from market.errors import MarketplaceRefuses, NotRegistered, StatementInvalid
from market.marketplace.buyer_receipts import keep_word
from market.marketplace.context import MarketplaceContext
from market.marketplace.decisions import Decisions
from market.marketplace.dispute_history import conduct_of
from market.marketplace.dispute_state import (
    LaneStanding,
    claim_of,
    dispute_id,
    disputed_lane,
    is_about,
    lane_of,
    standings,
)
from market.marketplace.fees import Fees, user_of
from market.marketplace.settlements import found, parties
from market.marketplace.statements import identities_known
from market.marketplace.tables import AllocationRow, DisputeRow, allocation_table, dispute_table
from market.marketplace.terms import DAY_NS
from market.marketplace.texts import Texts, pack_texts
from market.protocol.audits.conduct import OPEN_MAX, fee_nano, refusal_to_hear
from market.protocol.audits.disputes import Side
from market.protocol.audits.prompts import Shown, proved_prompt_tokens
from market.protocol.channels.channel import Lane, due
from market.protocol.records.envelope import Record, open_record

ANSWER_NS = DAY_NS
"""Time in which the other side may submit its text, in nanoseconds."""
OPENED_PER_DAY_MAX = 100
"""Most disputes opened by one user a day, because each stores two texts until it is decided."""
_HOUR_NS = 3600 * 10**9
_row, _allocation = dispute_table.c, allocation_table.c


@dataclass(frozen=True, slots=True)
class Brought:
    """One side's submission about a disputed request: a text, the prompt, receipts of it, or all of them.

    The request is the newest one that the seller claims on a lane of an allocation.
    """

    allocation: str
    lane: int
    texts: Texts
    prompt: Shown | None = None
    receipts: tuple[Record, ...] = ()


@dataclass(frozen=True, slots=True)
class _Proved:
    """The tokens of a proved prompt, and the digest of its sealed request."""

    request: str
    tokens: int


@dataclass(frozen=True, slots=True)
class Disputes:
    """Handle disputes. `counter_of` returns the tokenizer with this hash, if the marketplace has it."""

    context: MarketplaceContext
    counter_of: Callable[[str], TokenCounter | None]

    def bring(self, user_id: str, brought: Brought) -> DisputeRow:
        """Take one side's submission. The first one opens the dispute; the one that completes it leads to a
        decision.

        Raises:
            NotRegistered: the marketplace has issued no such allocation, or to others than this user.
            MarketplaceRefuses: nothing is disputed on the lane, it is decided, or the opener may not open one.
            StatementInvalid: the text is too long, the prompt or a receipt is not the voucher's, or a key not the
                request's; nothing is then booked.
            InsufficientCredit: the opener has less than the fee.
        """
        packed = pack_texts(brought.texts) if brought.texts else None
        self._end_settled(user_id)
        proved = self._proved(user_id, brought) if brought.prompt else None
        with self.context.write() as session, session.begin():
            allocation = found(session, brought.allocation)
            side, lane = _party(self.context, allocation, user_id, brought)
            row = self._heard(session, allocation, brought, lane, user_id, is_kept=True)
            session.add(row)
            if brought.receipts and side != "buyer":
                raise StatementInvalid(
                    "only the buyer submits receipts in a dispute. Submit yours by settling the allocation",
                    "receipts",
                )
            if brought.receipts:
                keep_word(self.context, session, row, lane, brought.receipts)
            _keep(row, side, packed, proved, claim_of(lane).promise.voucher.request)
            is_ripe = self._decisions.is_ripe(row, lane)
            session.flush()
            session.expunge(row)
        if row.status == "new":
            row = Fees(self.context).reserve_funds(row, side)
        return self.decide(row.id) if is_ripe else row

    def of(self, user_id: str, digest: str) -> list[tuple[LaneStanding, DisputeRow | None]]:
        """Return the state of each lane of this user's allocation, with the dispute about it.

        Raises:
            NotRegistered: the marketplace has issued no such allocation, or to others than this user.
        """
        with self.context.read() as session:
            allocation = found(session, digest)
            _side_of(allocation, user_id)
            rows = session.scalars(select(DisputeRow).where(_row.allocation_digest == digest)).all()
            session.expunge_all()
        by_lane = {(row.sub_channel, row.seq): row for row in rows if row.status != "new"}
        over = [about for about, row in by_lane.items() if row.status == "decided"]
        lanes = standings(self.context, allocation, over)
        return [(each, by_lane.get((each.lane, each.seq))) for each in lanes]

    def statements_of(self, digest: str) -> tuple[Record, ...]:
        """Return the known statements of an allocation's buyer about its keys. Raises NotRegistered."""
        with self.context.read() as session:
            buyer = parties(self.context, found(session, digest)).buyer
            exchanged = [open_record(raw) for raw in self.context.statements_of(buyer)]
            return identities_known(session, (buyer,), exchanged).statements_of(buyer)

    def due(self, limit: int) -> list[str]:
        """Return the ids of disputes that one side has not answered in time."""
        with self.context.read() as session:
            ripe = (_row.status == "open", _row.answer_due_ns <= self.context.clock_ns())
            return list(session.scalars(select(_row.id).where(*ripe).limit(limit)))

    def decide(self, dispute_id: str) -> DisputeRow:
        """Decide by the submissions so far. Raises as `Decisions.decide` does."""
        return self._decisions.decide(dispute_id)

    def put_off(self, dispute_id: str) -> None:
        """Postpone a decision that failed by an hour."""
        with self.context.write() as session, session.begin():
            row = session.get_one(DisputeRow, dispute_id)
            row.answer_due_ns = self.context.clock_ns() + _HOUR_NS

    @property
    def _decisions(self) -> Decisions:
        return Decisions(self.context, self.counter_of)

    def _end_settled(self, user_id: str) -> None:
        """End this user's disputes that are settled by now, so that they do not block new ones."""
        is_of = or_(_row.buyer_user_id == user_id, _row.seller_user_id == user_id)
        with self.context.read() as session:
            query = select(DisputeRow).where(is_of, _row.status == "open").order_by(_row.opened_ns)
            mine = [row for row in session.scalars(query) if user_of(row, row.opened_by) == user_id][:OPEN_MAX]
            lanes = [lane_of(self.context, found(session, row.allocation_digest), row.sub_channel) for row in mine]
        for row, lane in zip(mine, lanes, strict=True):
            if not is_about(lane, row.seq):
                self.decide(row.id)

    def _proved(self, user_id: str, brought: Brought) -> _Proved:
        """Return the tokens of the shown prompt. Runs outside of any transaction, because it may be megabytes.

        Only a user that may submit it, fee included, gets a count, and only once, so that counting is never free.
        """
        assert brought.prompt is not None, "there is something to prove"
        with self.context.read() as session:
            allocation = found(session, brought.allocation)
            side, lane = _party(self.context, allocation, user_id, brought)
            row = self._heard(session, allocation, brought, lane, user_id, is_kept=False)
            session.expunge_all()
        request = claim_of(lane).promise.voucher.request
        known_tokens = row.buyer_prompt_tokens if side == "buyer" else row.seller_prompt_tokens
        if known_tokens is not None:
            return _Proved(request, known_tokens)
        if row.status == "new":
            Fees(self.context).check(chart.user_paid(user_id), row.fee_nano)
        counting = self._decisions.counting(lane)
        return _Proved(request, proved_prompt_tokens(request, brought.prompt, counting))

    def _heard(
        self,
        session: Session,
        allocation: AllocationRow,
        brought: Brought,
        lane: Lane,
        user_id: str,
        *,
        is_kept: bool,
    ) -> DisputeRow:
        """Return the dispute about the lane's newest request, or a new one; locked if `is_kept`.

        Raises:
            MarketplaceRefuses: it is decided, or the user may not open a new one.
        """
        name = dispute_id(brought.allocation, brought.lane, lane)
        row = session.get(DisputeRow, name, with_for_update=is_kept)
        if row is None:
            return self._new(session, allocation, brought, lane, user_id)
        if row.status == "decided":
            raise MarketplaceRefuses("decided", f"this dispute is already decided: {row.reason}")
        return row

    def _new(
        self, session: Session, allocation: AllocationRow, brought: Brought, lane: Lane, user_id: str
    ) -> DisputeRow:
        self._decisions.counting(lane)
        if why := refusal_to_hear(conduct_of(session, user_id, self.context.clock_ns())):
            raise MarketplaceRefuses(why, "you have lost too many disputes, or have too many open")
        now_ns = self.context.clock_ns()
        is_opener = or_(
            (_row.buyer_user_id == user_id) & (_row.opened_by == "buyer"),
            (_row.seller_user_id == user_id) & (_row.opened_by == "seller"),
        )
        today = select(func.count()).where(is_opener, _row.opened_ns > now_ns - DAY_NS)
        if (session.scalar(today) or 0) >= OPENED_PER_DAY_MAX:
            raise MarketplaceRefuses(
                "too_many_today", f"{OPENED_PER_DAY_MAX} disputes were opened today, the maximum"
            )
        return DisputeRow(
            id=dispute_id(brought.allocation, brought.lane, lane),
            allocation_digest=brought.allocation,
            sub_channel=brought.lane,
            seq=claim_of(lane).receipt.seq,
            buyer_user_id=allocation.buyer_user_id,
            seller_user_id=allocation.seller_user_id,
            opened_by=_side_of(allocation, user_id),
            fee_nano=fee_nano(due(lane).disputed_nano),
            opened_ns=now_ns,
            answer_due_ns=now_ns + ANSWER_NS,
        )


def _keep(row: DisputeRow, side: Side, packed: str | None, proved: _Proved | None, request: str) -> None:
    """Store one side's submission. Raises MarketplaceRefuses if another request came meanwhile."""
    if proved and proved.request != request:
        raise MarketplaceRefuses("not_disputed", "another request of this sub-channel was answered meanwhile")
    if side == "buyer":
        row.buyer_text = packed or row.buyer_text
        row.buyer_prompt_tokens = proved.tokens if proved else row.buyer_prompt_tokens
    else:
        row.seller_text = packed or row.seller_text
        row.seller_prompt_tokens = proved.tokens if proved else row.seller_prompt_tokens


def _party(
    context: MarketplaceContext, allocation: AllocationRow, user_id: str, brought: Brought
) -> tuple[Side, Lane]:
    """Return the user's side, and the lane as it is known now.

    Raises:
        NotRegistered, MarketplaceRefuses: the user is on no side, or nothing is disputed there.
    """
    return _side_of(allocation, user_id), disputed_lane(context, allocation, brought.lane)


def _side_of(allocation: AllocationRow, user_id: str) -> Side:
    if user_id == allocation.buyer_user_id:
        return "buyer"
    if user_id == allocation.seller_user_id:
        return "seller"
    raise NotRegistered("the marketplace has issued no such allocation to you or for you")
