"""Finish requests that a crash interrupted: they have receipts, but no final one."""

import msgspec
import structlog

from market.errors import MarketError
from market.protocol.channels.statements import Delivery, read_receipt
from market.seller.accounts import ChannelAccount
from market.seller.carrier import JobRefused
from market.seller.delivery import ReceiptSigner
from market.seller.job_handler import JobHandler
from market.seller.store import RecordedSale, SellingStore

log = structlog.get_logger(__name__)

_MODEL = "unknown"
"""Receipts do not name the model."""


async def finish_leftovers(store: SellingStore, job_handler: JobHandler) -> None:
    """Sign final receipts as of the newest interim ones, which frees their lanes."""
    for channel in await store.unfinished():
        backing = await store.backing(channel)
        assert backing is not None, "a lane has its channel"
        try:
            credited = job_handler.creditor.read(backing.records, backing.statements)
            async with job_handler.receipt_signer.accounts.using(credited) as account:
                for lane in account.channel.lanes.values():
                    if lane.claim and not lane.claim.receipt.is_final:
                        await _finish(account, lane.claim, job_handler.receipt_signer)
        except (MarketError, JobRefused) as error:
            log.warning("channel not finished", channel=channel, why=str(error))


async def _finish(account: ChannelAccount, claim: Delivery, receipt_signer: ReceiptSigner) -> None:
    receipt = msgspec.structs.replace(claim.receipt, part=claim.receipt.part + 1, is_final=True)
    terms, voucher = account.channel.terms, claim.promise.voucher
    name = f"{terms.channel}-{voucher.lane}"
    record = receipt_signer.own.say("receipt", name, receipt.part, receipt, receipt_signer.clock_ms())
    delivery = read_receipt(record, claim.promise, terms, account.credited.standing)
    amount_nano = min(delivery.request_nano, int(voucher.ceiling_nano - voucher.base_nano))
    sale = RecordedSale(terms.channel, voucher.lane, voucher.seq, _MODEL, amount_nano, receipt_signer.clock_ms())
    await receipt_signer.accounts.keep(account, delivery, sale)
