"""/admin/market/sales: this gateway's sales on the market, for its own ledger."""

from typing import Annotated

from fastapi import APIRouter
from pydantic import Field

from accounting.money import UsdAmount, format_usd
from accounting.rules.sales import sold
from gateway.admin.fields import Body, Text
from gateway.api.authority import Operator
from market.protocol.channels.terms import LANES_MAX

router = APIRouter()


class Sale(Body):
    """One request's final receipt: its amount, including the marketplace's fee."""

    channel: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    lane: Annotated[int, Field(ge=0, lt=LANES_MAX)]
    seq: Annotated[int, Field(ge=1, lt=2**53)]
    amount: UsdAmount
    model: Text


@router.post("/market/sales")
async def book_sale(operator: Operator, sale: Sale) -> dict[str, str | int]:
    """Post the amount of a request sold on the market, once: another amount for the same request is refused."""
    posting = sold(sale.channel, sale.lane, sale.seq, sale.amount, sale.model)
    posted = await operator.services.ledger.book(posting)
    return {"event": posted.event_seq, "amount": format_usd(sale.amount)}
