"""A purchase is counted by a tokenizer that the admin and the marketplace know, or else by bytes."""

from pathlib import Path

import pytest

from accounting.metering.counts import estimate_tokens
from accounting.metering.tokenizers import FILE_BYTES_MAX, Pinned, Tokenizers
from market.buyer.tokenizers import PurchaseTokenizers
from market.protocol.listings.listing import read_listing
from tests.accounting.tokenizer import make_tokenizer
from tests.market.buyer.stalls import ANSWER, stalls
from tests.market.test_listings import listed

pytestmark = pytest.mark.anyio


async def test_only_what_admin_and_marketplace_know_counts(tmp_path: Path) -> None:
    file = make_tokenizer(tmp_path)
    sha256 = file.sha256.lower()
    listing, other = (read_listing(listed(tokenizer_sha256=each)) for each in (sha256, "b" * 64))
    settled: set[str] = set()
    known = PurchaseTokenizers(Tokenizers({sha256: Pinned(file.path, sha256)}), lambda: settled)
    assert known.choose(listing, is_partner=False) is None
    assert known.choose(listing, is_partner=True) == sha256
    settled |= {sha256, "b" * 64}
    assert known.choose(listing, is_partner=False) == (await known.counting(listing, is_partner=False)).tokenizer
    assert known.choose(other, is_partner=True) is None
    assert (await known.counting(other, is_partner=True)).tokenizer is None


@pytest.mark.parametrize("fault", ["changed", "large", "away"])
async def test_a_file_that_is_not_the_named_one_counts_nothing(tmp_path: Path, fault: str) -> None:
    file = make_tokenizer(tmp_path)
    sha256 = file.sha256.lower()
    if fault == "large":
        with file.path.open("r+b") as opened:
            opened.truncate(FILE_BYTES_MAX + 1)
    elif fault == "changed":
        file.path.write_bytes(file.path.read_bytes() + b" ")
    else:
        file.path.unlink()
    known = PurchaseTokenizers(Tokenizers({sha256: Pinned(file.path, sha256)}), lambda: {sha256})
    counting = await known.counting(read_listing(listed(tokenizer_sha256=sha256)), is_partner=False)
    assert (counting.tokenizer, counting.text_tokens(ANSWER)) == (None, estimate_tokens(ANSWER))


async def test_an_answer_of_an_unknown_tokenizer_is_paid_by_its_bytes(tmp_path: Path) -> None:
    async with stalls(tmp_path, {}, tokenizers={}) as market:
        (seller,) = market.sellers
        bill = await market.ask(seller)
        assert (bill.text, bill.usage["completion_tokens"]) == (ANSWER, estimate_tokens(ANSWER))
        assert [each.promise.voucher.tokenizer for each in seller.deliveries] == [None]
        # By its bytes a text may have more tokens than the model was asked for; those are not paid.
        short = await market.ask(seller, max_tokens=2)
        assert (short.text, short.usage["completion_tokens"]) == (ANSWER, 2)
        assert short.cost_nano == market.owed_nano
        assert market.nothing_is_open()
