"""One purchase on paper, through every room: listed, chosen, promised, sealed, delivered, settled, posted."""

import msgspec

from accounting.money import charge
from accounting.rules import market as rules
from accounting.rules.parts import HeldPart
from market.protocol.channels.admission import ChannelCredit, PricedRequest, refusal
from market.protocol.channels.channel import Channel, Due, delivered, merge, settle
from market.protocol.channels.next_voucher import VoucherOrder, next_voucher
from market.protocol.channels.statements import Receipt, read_receipt, read_voucher
from market.protocol.channels.terms import Allocation, ChannelTerms, read_allocation
from market.protocol.channels.transcript import Transcript
from market.protocol.identity.keys import identity_of
from market.protocol.identity.pseudonyms import pseudonym_for
from market.protocol.listings.listing import Listing, is_on_offer, read_listing
from market.protocol.listings.prices import cost_nano
from market.protocol.matching.candidate import Candidate
from market.protocol.matching.caps import LearnedCap
from market.protocol.matching.choice import choose
from market.protocol.matching.track import Track
from market.protocol.records.amounts import Amount
from market.protocol.records.book import alive, book_of
from market.protocol.records.book import merge as merge_records
from market.protocol.records.envelope import Record, Saying, open_record, sign
from market.protocol.sealing.agreement import Context, SealingKey
from market.protocol.sealing.request import open_request, seal_request
from market.protocol.sealing.seen import Seen
from tests.market.parties import NOW_MS, STANDING, id_of, signed_record
from tests.market.test_listings import LISTING

SECRET = bytes(range(32))
SELLER = id_of("seller")
BODY = b'{"model":"gemma-3-1b-it","messages":[{"role":"user","content":"Say hello."}]}'
ANSWER = ["Hel", "lo, ", "wör", "ld."]
TOKENS = 5, 0, 4


def found_listing(record: Record) -> Listing:
    """What the buyer makes of a listing that came by way of another gateway."""
    book = merge_records(book_of([]), book_of([open_record(record.raw)]))
    (living,) = alive(book, NOW_MS, STANDING)
    listing = read_listing(living)
    assert is_on_offer(listing, NOW_MS)
    assert alive(book, NOW_MS + 600_000, STANDING) == []
    return listing


def chosen(record: Record, listing: Listing) -> None:
    cap = LearnedCap.of(listing.capacity.slots)
    candidate = Candidate(record.digest, SELLER, cost_nano(listing.pricing, *TOKENS), Track(), cap)
    choice = choose([candidate], lambda: 0.5)
    assert choice is not None
    assert choice.candidate.listing == record.digest


def test_a_purchase_from_listing_to_posting() -> None:
    sealing_key = SealingKey()
    offer = msgspec.structs.replace(LISTING, sealing_key=sealing_key.public.hex())
    record = signed_record("seller", "listing", offer, "gemma", 1, lasts_ms=300_000)
    listing = found_listing(record)
    chosen(record, listing)

    buyer = pseudonym_for(SECRET, SELLER)
    buyer_id = identity_of(buyer.public_key)
    allocated = signed_record(
        "marketplace", "allocation", Allocation(buyer_id, SELLER, Amount(10**6), "hold:a1", 1), lasts_ms=10**7
    )
    terms, allocation = read_allocation(allocated, id_of("marketplace"), STANDING)

    # The buyer seals its request and promises to pay for it.
    context = Context(terms.channel, 0, 1, SELLER)
    request = seal_request(BODY, bytes.fromhex(listing.sealing_key), context)
    most_nano = cost_nano(listing.pricing, 5, 0, 100)
    order = VoucherOrder(request.digest, record.digest, listing.pricing, most_nano)
    limit_nano = int(allocation.limit_nano)
    voucher = next_voucher(Channel(terms), 0, 0, order, limit_nano=limit_nano, open_ceilings={})
    assert voucher is not None
    vouched = sign(Saying("voucher", buyer_id, "v", 1, NOW_MS, voucher), buyer)

    # The seller checks the promise before it opens the request.
    promise = read_voucher(open_record(vouched.raw), terms, STANDING)
    offered, asked = {record.digest: listing.pricing}, PricedRequest(request.digest, most_nano)
    credit = ChannelCredit(limit_nano, allocated.expires_ms)
    refused = refusal(Channel(terms), promise, asked, offered, credit, open_ceilings={}, now_ms=NOW_MS)
    assert refused is None
    opened = open_request(request.sealed, sealing_key, context, Seen())
    assert opened.body == BODY
    nonce, sealer = opened.answer()
    pieces = [sealer.seal(piece.encode(), is_last=n == len(ANSWER)) for n, piece in enumerate(ANSWER, 1)]

    opener = request.answer(nonce)
    came = [opener.open(piece).decode() for piece in pieces]
    opener.finish()
    sellers, buyers = Transcript(request.digest), Transcript(request.digest)
    sellers.add("".join(ANSWER))
    for text in came:
        buyers.add(text)
    assert sellers.digest() == buyers.digest()

    # Both sign what was delivered; either knows only a part of what the other does.
    body = Receipt(terms.channel, 0, 1, 0, promise.digest, *TOKENS, sellers.digest(), is_final=True)
    by_seller = read_receipt(signed_record("seller", "receipt", body), promise, terms, STANDING)
    by_buyer = read_receipt(
        sign(Saying("receipt", buyer_id, "r", 0, NOW_MS, body), buyer), promise, terms, STANDING
    )
    halves = delivered(Channel(terms), by_seller, SELLER), delivered(Channel(terms), by_buyer, buyer_id)
    due = settle(merge(*halves), limit_nano)
    assert due == Due(charge(listing.pricing.price, *TOKENS))
    assert_posts(due, terms)


def assert_posts(due: Due, terms: ChannelTerms) -> None:
    """The ledger books the amount as it is."""
    order = rules.PurchaseHold("a1", (HeldPart("user:ann:paid", 10**6, 7),))
    posting = rules.capture(order, rules.SellerBill(terms.seller, due.amount_nano, 500))
    assert sum(leg.amount_nano for leg in posting.legs if leg.debit == "user:ann:paid") == due.amount_nano
