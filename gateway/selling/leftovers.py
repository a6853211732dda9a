"""Finish requests that a crash interrupted: they have receipts, but no final one."""

import msgspec
import structlog

from gateway.selling.accounts import Account
from gateway.selling.carrier import Refused
from gateway.selling.delivery import Till
from gateway.selling.desk import Desk
from gateway.selling.store import Sale, SellingStore
from market.channels.statements import Delivery, read_receipt
from market.errors import MarketError

log = structlog.get_logger(__name__)

_MODEL = "unknown"
"""Receipts do not name the model."""


async def finish_leftovers(store: SellingStore, desk: Desk) -> None:
    """Sign final receipts as of the newest interim ones, which frees their lanes."""
    for channel in await store.unfinished():
        backing = await store.backing(channel)
        assert backing is not None, "a lane has its channel"
        try:
            credited = desk.creditor.read(backing.records, backing.statements)
            async with desk.till.accounts.using(credited) as account:
                for lane in account.channel.lanes.values():
                    if lane.claim and not lane.claim.receipt.is_final:
                        await _finish(account, lane.claim, desk.till)
        except (MarketError, Refused) as error:
            log.warning("a channel is left as it is", channel=channel, why=str(error))


async def _finish(account: Account, claim: Delivery, till: Till) -> None:
    receipt = msgspec.structs.replace(claim.receipt, part=claim.receipt.part + 1, is_final=True)
    terms, voucher = account.channel.terms, claim.promise.voucher
    name = f"{terms.channel}-{voucher.lane}"
    record = till.own.say("receipt", name, receipt.part, receipt, till.clock_ms())
    delivery = read_receipt(record, claim.promise, terms, account.credited.standing)
    amount_nano = min(delivery.request_nano, int(voucher.ceiling_nano - voucher.base_nano))
    sale = Sale(terms.channel, voucher.lane, voucher.seq, _MODEL, amount_nano, till.clock_ms())
    await till.accounts.keep(account, delivery, sale)
