"""Read what a seller has earned, sale by sale, from the ledger alone."""

from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import func, select

from accounting import chart
from accounting.ledger.balances import Reader
from accounting.tables import account_table, event_table, transfer_table

_transfer, _event = transfer_table.c, event_table.c
_SETTLE = "settle:"


@dataclass(frozen=True, slots=True)
class Earned:
    """One draw's part for the seller, in nano-USD. `ref` is the allocation, `idem_key` the draw's key."""

    transfer_seq: int
    idem_key: str
    ref: str
    created_ns: int
    amount_nano: int

    @property
    def charge_id(self) -> str:
        """The draw's name in refunds: `<allocation>:<number>`."""
        return self.idem_key.removeprefix(_SETTLE)


def earned_after(reader: Reader, seller_id: str, transfer_seq: int, *, limit: int) -> list[Earned]:
    """Return what draws brought a seller after this transfer, in the order of the ledger."""
    account = select(account_table.c.id).where(account_table.c.code == chart.seller_maturing(seller_id))
    query = (
        select(_transfer.seq, _event.idem_key, _event.ref, _event.created_ns, _transfer.amount)
        .join(event_table, _event.seq == _transfer.event_seq)
        .where(_transfer.credit == account.scalar_subquery(), _transfer.seq > transfer_seq)
        .where(_event.kind.in_(("draw", "late")), _transfer.phase == "single")
        .order_by(_transfer.seq)
        .limit(limit)
    )
    return [Earned(*row) for row in reader.execute(query)]


def given_back(reader: Reader, charge_ids: Collection[str]) -> dict[str, int]:
    """Return what refunds took from sellers, by the refunded draws."""
    debited = account_table.alias("debited")
    is_sellers = debited.c.code.startswith("seller:") | debited.c.code.startswith("asset:seller_recv:")
    query = (
        select(_event.ref, func.sum(_transfer.amount))
        .join(event_table, _event.seq == _transfer.event_seq)
        .join(debited, debited.c.id == _transfer.debit)
        .where(_event.idem_key.in_([f"refund:{charge_id}" for charge_id in charge_ids]), is_sellers)
        .group_by(_event.ref)
    )
    return {ref: int(amount_nano) for ref, amount_nano in reader.execute(query)}
