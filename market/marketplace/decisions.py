"""Decide disputes: what is due, given both sides' signatures and submissions, and who loses the fee."""

import json
from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from accounting.metering.delivered import TokenCounter
from market.errors import MarketplaceRefuses
from market.marketplace.buyer_receipts import agreed_end, remembered
from market.marketplace.context import MarketplaceContext
from market.marketplace.dispute_history import SETTLED, conduct_of
from market.marketplace.dispute_state import admitted_word, buyers_word, claim_of, is_about, lane_of, signed_counts
from market.marketplace.fees import Fees
from market.marketplace.settlements import decided_on, found
from market.marketplace.tables import AllocationRow, DisputeRow, allocation_table
from market.marketplace.texts import read_texts
from market.protocol.audits.conduct import presumption
from market.protocol.audits.disputes import Dispute, Side, Verdict, decide
from market.protocol.channels.channel import Lane
from market.protocol.counting.token_count import Counting

_allocation = allocation_table.c


@dataclass(frozen=True, slots=True)
class Decisions:
    """Decide disputes. `counter_of` returns the tokenizer with this hash, if the marketplace has it."""

    context: MarketplaceContext
    counter_of: Callable[[str], TokenCounter | None]

    def decide(self, dispute_id: str) -> DisputeRow:
        """Decide by the submissions so far. The amount is due from then on, and the fee is kept or released.

        If nothing is disputed any more, because the other side has signed after all, it ends without a loser.

        Raises:
            MarketplaceRefuses: the marketplace does not count by the voucher's tokenizer.
        """
        with self.context.read() as session:
            row = session.get_one(DisputeRow, dispute_id)
            lane = lane_of(self.context, found(session, row.allocation_digest), row.sub_channel)
            is_settled = not is_about(lane, row.seq)
            is_open = row.status == "open"
            verdict = self._verdict(session, row, lane) if is_open and not is_settled else None
            session.expunge(row)
        if is_open:
            row = self._write_down(dispute_id, verdict)
        if row.status == "decided":
            Fees(self.context).end(row)
        return row

    def is_ripe(self, row: DisputeRow, lane: Lane) -> bool:
        """Return whether no later submission could change the verdict.

        A prompt shown by the seller counts: only the buyer could have made bytes that two keys open.
        """
        dispute, is_shown = dispute_of(row, lane), row.seller_prompt_tokens is not None
        if row.buyer_text and row.seller_text:
            return True
        if dispute.is_end_agreed and (is_shown or not dispute.is_about_prompt):
            return True
        return is_shown and signed_counts(remembered(row, lane)) is not None and dispute.is_small

    def counting(self, lane: Lane) -> Counting:
        """Return what counts a claim. Raises MarketplaceRefuses if the marketplace does not have its tokenizer."""
        tokenizer = claim_of(lane).promise.voucher.tokenizer
        counter = self.counter_of(tokenizer) if tokenizer else None
        if tokenizer and counter is None:
            raise MarketplaceRefuses("no_tokenizer", "the marketplace does not count by the voucher's tokenizer")
        return Counting(counter)

    def _write_down(self, dispute_id: str, verdict: Verdict | None) -> DisputeRow:
        """Store a decision. Only the first one counts. Without a verdict the dispute ends as settled."""
        with self.context.write() as session, session.begin():
            row = session.get_one(DisputeRow, dispute_id, with_for_update=True)
            if row.status == "open" and verdict is None:
                row.status, row.reason = "decided", SETTLED
            elif row.status == "open" and verdict is not None:
                row.status, row.reason, row.loser = "decided", verdict.reason, verdict.loser
                row.amount_nano = verdict.amount_nano
                query = select(AllocationRow).where(_allocation.digest == row.allocation_digest).with_for_update()
                allocation = session.scalars(query).one()
                before = decided_on(allocation)
                kept = {n: [each.seq, each.amount_nano] for n, each in before.items()}
                least_nano = before[row.sub_channel].amount_nano if row.sub_channel in before else 0
                decided = {row.sub_channel: [row.seq, max(verdict.amount_nano, least_nano)]}
                allocation.decisions = json.dumps(kept | decided)
                allocation.version += 1
                allocation.next_check_ns = allocation.created_ns
            if row.status == "decided":
                # Private text is deleted as soon as the dispute is decided.
                row.buyer_text = row.seller_text = None
            session.flush()
            session.expunge(row)
        return row

    def _verdict(self, session: Session, row: DisputeRow, lane: Lane) -> Verdict:
        texts = [read_texts(packed) for packed in (row.buyer_text, row.seller_text) if packed]
        now_ns = self.context.clock_ns()
        conducts = conduct_of(session, row.buyer_user_id, now_ns), conduct_of(session, row.seller_user_id, now_ns)
        counting = self.counting(lane)
        return decide(dispute_of(row, lane), texts, counting, presumed_wrong=presumption(*conducts))


def dispute_of(row: DisputeRow, lane: Lane) -> Dispute:
    """Return the dispute, with the submitted receipts."""
    opened_by: Side = "buyer" if row.opened_by == "buyer" else "seller"
    shown = (row.seller_prompt_tokens, row.buyer_prompt_tokens)
    proved = next((tokens for tokens in shown if tokens is not None), None)
    known = remembered(row, lane)
    word = buyers_word(known) if proved is None or row.seller_text else admitted_word(known)
    return Dispute(claim_of(known), word, opened_by, agreed_end(row, lane), proved)
