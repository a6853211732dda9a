"""If buyer and seller signed different counts, the marketplace recounts the text, and the wrong party pays."""

import json
from pathlib import Path

import pytest
from sqlalchemy import select

from accounting.errors import InsufficientCredit
from accounting.metering.counts import tokens_of_bytes
from accounting.metering.delivered import Delivered
from accounting.metering.tokenizers import load_counter
from market.errors import MarketplaceRefuses, NotRegistered, StatementInvalid
from market.marketplace import disputes
from market.marketplace.disputes import ANSWER_NS, Brought
from market.marketplace.fees import Fees
from market.marketplace.tables import DisputeRow
from market.marketplace.texts import ChoiceText
from market.protocol.audits.conduct import FEE_NANO_MIN
from market.protocol.audits.disputes import Side
from market.protocol.audits.prompts import Shown
from market.protocol.channels.statements import Receipt, Voucher
from market.protocol.counting.answer import transcript_of
from market.protocol.counting.token_count import Counting
from market.protocol.records.amounts import Amount
from market.protocol.records.envelope import Record
from market.protocol.sealing.agreement import Context, SealingKey
from market.protocol.sealing.request import SealedRequest, seal_request
from tests.accounting.tokenizer import make_tokenizer
from tests.databases import Kind
from tests.market.marketplace.rules.conftest import USD, Marketplace
from tests.market.marketplace.rules.dealing import Dealing
from tests.market.parties import id_of, signed_record
from tests.market.trade import DIGEST, PRICES, cost_nano

WORDS = "the mill grinds what the race brings " * 100
TRANSCRIPT = transcript_of(DIGEST, {0: Delivered(WORDS)})


@pytest.fixture
def kind() -> Kind:
    """Settling is tried on each kind of database; what follows from it on one."""
    return "sqlite"


class DisputeView:
    """One request on an allocation; `tokens` is what the text comes to, and each side may sign another count."""

    def __init__(self, marketplace: Marketplace, folder: Path) -> None:
        counter = load_counter(make_tokenizer(folder))
        marketplace.counters[counter.sha256] = counter
        self.marketplace = marketplace
        self.tokenizer: str | None = counter.sha256
        self.tokens = Counting(counter).delivered([Delivered(WORDS)]).completion_tokens
        self.allocation, self.terms = marketplace.allocate()

    def served(self, buyers_tokens: int, sellers_tokens: int) -> list[Record]:
        dealing = Dealing(self.terms, tokenizer=self.tokenizer)
        more = sellers_tokens - buyers_tokens
        records = dealing.serve(0, 0, buyers_tokens, tells=more, transcript=TRANSCRIPT)
        outcome = self.marketplace.settle(self.allocation, records)
        assert (outcome.settled_nano, outcome.reckoning.disputed_nano > 0) == (dealing.due_nano, True)
        return records

    def brings(self, user_id: str, words: str = WORDS, allocation: str = "") -> str:
        texts = {0: ChoiceText(words)}
        brought = Brought(allocation or self.allocation.digest, 0, texts)
        row = self.marketplace.disputes.bring(user_id, brought)
        return f"{row.status} {row.reason} {row.loser}"

    def settled(self) -> int:
        return self.marketplace.settle(self.allocation, []).settled_nano


@pytest.fixture
def quarrel(marketplace: Marketplace, tmp_path: Path) -> DisputeView:
    return DisputeView(marketplace, tmp_path)


def test_a_buyer_who_signed_too_little_pays_what_was_delivered(quarrel: DisputeView) -> None:
    marketplace = quarrel.marketplace
    quarrel.served(quarrel.tokens // 4, quarrel.tokens)
    with pytest.raises(InsufficientCredit):
        quarrel.brings("sam")
    marketplace.ledger.credit("sam", USD)
    assert quarrel.brings("sam") == quarrel.brings("sam") == "open None None"
    assert marketplace.held("sam") > 0
    with pytest.raises(NotRegistered):
        quarrel.brings("bob")
    assert quarrel.brings("ann") == "decided recounted buyer"
    with marketplace.context.read() as session:
        row = session.scalars(select(DisputeRow)).one()
        assert (row.buyer_text, row.seller_text) == (None, None), "texts are kept until it is decided"
    assert quarrel.settled() == cost_nano(0, quarrel.tokens)
    assert (marketplace.held("sam"), marketplace.posted("user:sam:paid")) == (0, USD)
    with pytest.raises(MarketplaceRefuses, match="decided"):
        quarrel.brings("sam")
    assert marketplace.is_sound()


def test_a_seller_that_claims_too_much_loses_without_any_statement(quarrel: DisputeView) -> None:
    marketplace = quarrel.marketplace
    quarrel.served(quarrel.tokens, 4 * quarrel.tokens)
    paid_nano = marketplace.posted("user:ann:paid")
    assert quarrel.brings("ann") == "open None None"
    assert marketplace.disputes.due(10) == []
    marketplace.wait(ANSWER_NS)
    assert [marketplace.disputes.decide(dispute_id).loser for dispute_id in marketplace.disputes.due(10)] == [
        "seller"
    ]
    marketplace.look()
    assert (quarrel.settled(), marketplace.posted("user:ann:paid")) == (cost_nano(0, quarrel.tokens), paid_nano)
    assert marketplace.is_sound()


def test_a_party_that_disputes_a_right_count_pays_for_it(quarrel: DisputeView) -> None:
    marketplace = quarrel.marketplace
    marketplace.ledger.credit("sam", USD)
    quarrel.served(quarrel.tokens, 3 * quarrel.tokens)
    quarrel.brings("sam")
    fees_nano = marketplace.posted("income:market_fee")
    assert quarrel.brings("ann", "something else") == "decided recounted seller"
    assert marketplace.posted("user:sam:paid") == USD - (marketplace.posted("income:market_fee") - fees_nano) < USD
    assert quarrel.settled() == cost_nano(0, quarrel.tokens)
    assert marketplace.is_sound()


def test_a_day_has_so_many_disputes_of_one_user(quarrel: DisputeView, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disputes, "OPENED_PER_DAY_MAX", 0)
    quarrel.served(quarrel.tokens, 4 * quarrel.tokens)
    with pytest.raises(MarketplaceRefuses, match="opened today"):
        quarrel.brings("ann")


def test_no_dispute_is_opened_that_cannot_be_counted(quarrel: DisputeView) -> None:
    quarrel.served(quarrel.tokens // 4, quarrel.tokens)
    quarrel.marketplace.counters.clear()
    with pytest.raises(MarketplaceRefuses) as refused:
        quarrel.brings("ann")
    assert refused.value.code == "no_tokenizer"
    assert quarrel.marketplace.held("ann") > 0, "the allocation alone"


def test_a_voucher_without_a_tokenizer_is_counted_by_bytes(quarrel: DisputeView) -> None:
    quarrel.marketplace.counters.clear()
    quarrel.tokenizer, quarrel.tokens = None, tokens_of_bytes(len(WORDS))
    quarrel.served(quarrel.tokens // 4, quarrel.tokens)
    assert quarrel.brings("ann") == "open None None"
    quarrel.marketplace.ledger.credit("sam", USD)
    assert quarrel.brings("sam") == "decided recounted buyer"
    assert quarrel.settled() == cost_nano(0, quarrel.tokens)


def test_an_undisputed_receipt_is_not_decided(quarrel: DisputeView) -> None:
    with pytest.raises(MarketplaceRefuses) as refused:
        quarrel.brings("ann")
    assert refused.value.code == "not_disputed"


def test_the_party_that_reserves_the_fee_has_opened_the_dispute(
    quarrel: DisputeView, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both ask at once; the first one to ask cannot pay."""
    marketplace, reserve_funds = quarrel.marketplace, Fees.reserve_funds
    quarrel.served(quarrel.tokens // 4, quarrel.tokens)
    answers: list[str] = []

    def slowly(fees: Fees, row: DisputeRow, side: Side) -> DisputeRow:
        monkeypatch.setattr(Fees, "reserve_funds", reserve_funds)
        answers.append(quarrel.brings("ann"))
        return reserve_funds(fees, row, side)

    monkeypatch.setattr(Fees, "reserve_funds", slowly)
    paid_nano = marketplace.posted("user:ann:paid")
    assert quarrel.brings("sam") == "decided recounted buyer"
    assert len(answers) == 1
    assert paid_nano - marketplace.posted("user:ann:paid") >= FEE_NANO_MIN
    assert quarrel.settled() == cost_nano(0, quarrel.tokens)
    assert marketplace.is_sound()


def test_a_buyer_who_signs_after_all_leaves_nothing_open(quarrel: DisputeView) -> None:
    """Else three of those would keep the seller from ever being heard again."""
    marketplace = quarrel.marketplace
    marketplace.ledger.credit("sam", USD)
    for _ in range(4):
        quarrel.allocation, quarrel.terms = marketplace.allocate()
        promise, _, _ = quarrel.served(quarrel.tokens // 4, quarrel.tokens)
        assert quarrel.brings("sam") == "open None None"
        named = quarrel.terms.channel, 0, 1, 1, promise.digest
        receipt = Receipt(*named, 0, 0, quarrel.tokens, TRANSCRIPT, is_final=True)
        marketplace.settle(quarrel.allocation, [promise, signed_record("buyer", "receipt", receipt, "0", 1)])
    marketplace.wait(ANSWER_NS)
    ended = [marketplace.disputes.decide(dispute_id) for dispute_id in marketplace.disputes.due(10)]
    assert [(row.reason, row.loser) for row in ended] == [("settled", None)]
    assert (marketplace.held("sam"), marketplace.posted("user:sam:paid")) == (0, USD)
    assert marketplace.is_sound()


class LateClaim(DisputeView):
    """The buyer goes on to the next request; then the seller claims a text for the one before that never came."""

    made_up = WORDS * 8

    def __init__(self, marketplace: Marketplace, folder: Path) -> None:
        super().__init__(marketplace, folder)
        marketplace.ledger.credit("sam", USD)
        dealing = Dealing(self.terms, tokenizer=self.tokenizer)
        self.promise, self.sellers, self.own = dealing.serve(0, 0, self.tokens, transcript=TRANSCRIPT)
        self.later = dealing.serve(0, 0, 10, transcript=TRANSCRIPT)
        self.honest_nano = dealing.due_nano
        marketplace.settle(self.allocation, [self.promise, self.own])
        marketplace.settle(self.allocation, [self.later[0], self.later[2]])
        outcome = marketplace.settle(self.allocation, [self.promise, self.claim()])
        assert outcome.reckoning.disputed_nano > 0

    def claim(self, part: int = 1) -> Record:
        made_up = transcript_of(DIGEST, {0: Delivered(self.made_up)})
        named = self.terms.channel, 0, 1, part, self.promise.digest
        receipt = Receipt(*named, 0, 0, 8 * self.tokens, made_up, is_final=True)
        return signed_record("seller", "receipt", receipt, "0", 1)

    def answers(self, *receipts: Record, words: str = "", user_id: str = "ann") -> str:
        texts = {0: ChoiceText(words)} if words else {}
        brought = Brought(self.allocation.digest, 0, texts, receipts=receipts)
        row = self.marketplace.disputes.bring(user_id, brought)
        return f"{row.status} {row.reason} {row.loser}"


@pytest.fixture
def late(marketplace: Marketplace, tmp_path: Path) -> LateClaim:
    return LateClaim(marketplace, tmp_path)


def test_a_claim_about_an_earlier_request_is_answered_by_its_receipt(late: LateClaim) -> None:
    assert late.brings("sam", late.made_up) == "open None None"
    assert late.answers(late.own) == "open None None"
    assert late.answers(words=WORDS) == "decided buyers_text None"
    with late.marketplace.context.read() as session:
        assert session.scalars(select(DisputeRow)).one().amount_nano == cost_nano(0, late.tokens)
    assert late.settled() == late.honest_nano
    assert late.marketplace.is_sound()


def test_a_seller_is_held_to_the_end_that_it_had_signed(late: LateClaim) -> None:
    """No text of the buyer's is needed, and none changes it."""
    assert late.brings("sam", late.made_up) == "open None None"
    fees_nano = late.marketplace.posted("user:sam:paid")
    assert late.answers(late.own, late.sellers) == "decided agreed_before seller"
    assert late.settled() == late.honest_nano
    assert late.marketplace.posted("user:sam:paid") < fees_nano
    assert late.marketplace.is_sound()


def test_receipts_of_anything_else_are_refused(late: LateClaim) -> None:
    late.brings("sam", late.made_up)
    stranger = signed_record("bob", "receipt", late.own.read("receipt", Receipt), "0", 1)
    for receipt in (late.later[2], late.promise, stranger):
        with pytest.raises(StatementInvalid) as refused:
            late.answers(receipt)
        assert refused.value.field == "receipts"
    with pytest.raises(StatementInvalid, match="only the buyer submits receipts"):
        late.answers(late.claim(2), user_id="sam")
    assert late.answers(late.own, late.sellers) == "decided agreed_before seller"


def test_an_award_hides_nothing_that_is_signed_later(quarrel: DisputeView) -> None:
    marketplace = quarrel.marketplace
    marketplace.ledger.credit("sam", USD)
    dealing = Dealing(quarrel.terms, tokenizer=quarrel.tokenizer)
    dealing.serve(0, 0, quarrel.tokens - 500, tells=500, transcript=TRANSCRIPT)
    marketplace.settle(quarrel.allocation, dealing.records)
    quarrel.brings("sam")
    quarrel.brings("ann")
    awarded_nano = quarrel.settled()
    assert awarded_nano == cost_nano(0, quarrel.tokens)
    dealing.serve(0, 0, 10, signs=False)
    dealing.serve(1, 0, 200)
    outcome = marketplace.settle(quarrel.allocation, dealing.records)
    assert outcome.settled_nano == awarded_nano + cost_nano(0, 200)


class PromptQuarrel(DisputeView):
    """One answer with undisputed text. Each side signs for so many times the prompt, or not at all."""

    def __init__(self, marketplace: Marketplace, folder: Path, *, sellers: int, buyers: int | None) -> None:
        super().__init__(marketplace, folder)
        content = json.dumps({"kind": "completion", "request": {"prompt": WORDS}}).encode()
        self.key, self.context = SealingKey(), Context(self.terms.channel, 0, 1, id_of("seller"))
        self.request = seal_request(content, self.key.public, self.context)
        counting = Counting(marketplace.counters[str(self.tokenizer)])
        self.prompt_tokens = counting.prompt_tokens({"prompt": WORDS})
        marketplace.ledger.credit("sam", USD)
        named = self.terms.channel, 0, 1
        prices = PRICES, Amount(0), Amount(USD)
        promise = signed_record(
            "buyer", "voucher", Voucher(*named, self.request.digest, DIGEST, *prices, self.tokenizer)
        )
        receipts = []
        for by, times in (("seller", sellers), ("buyer", buyers)):
            if times is not None:
                counts = times * self.prompt_tokens, 0, self.tokens
                body = Receipt(*named, 0, promise.digest, *counts, TRANSCRIPT, is_final=True)
                receipts.append(signed_record(by, "receipt", body))
        marketplace.settle(self.allocation, [promise, *receipts])

    def shows(self, request: SealedRequest, by: SealedRequest | None = None) -> str:
        """The seller shows a request, opened by the keys of another one if need be."""
        prompt = Shown(request.sealed, (by or request).agreement.keys("request"))
        row = self.marketplace.disputes.bring("sam", Brought(self.allocation.digest, 0, {}, prompt))
        return f"{row.status} {row.reason} {row.loser}"


@pytest.mark.parametrize(("liar", "sellers", "buyers"), [("buyer", 1, 0), ("seller", 5, 1)])
def test_a_prompt_that_is_shown_is_paid_by_its_count(
    marketplace: Marketplace, tmp_path: Path, liar: str, sellers: int, buyers: int
) -> None:
    quarrel = PromptQuarrel(marketplace, tmp_path, sellers=sellers, buyers=buyers)
    assert quarrel.shows(quarrel.request) == f"decided prompt {liar}"
    assert quarrel.settled() == cost_nano(quarrel.prompt_tokens, quarrel.tokens)
    assert marketplace.held("sam") == 0
    assert (marketplace.posted("user:sam:paid") < USD) == (liar == "seller")
    assert marketplace.is_sound()


def test_who_denies_the_prompt_by_going_on_has_a_day_for_another_word(
    marketplace: Marketplace, tmp_path: Path
) -> None:
    """Nothing but the next request's voucher, whose base leaves the prompt out."""
    quarrel = PromptQuarrel(marketplace, tmp_path, sellers=1, buyers=None)
    named = quarrel.terms.channel, 0, 2, DIGEST, DIGEST
    answer_nano = cost_nano(0, quarrel.tokens)
    marketplace.settle(
        quarrel.allocation,
        [signed_record("buyer", "voucher", Voucher(*named, PRICES, Amount(answer_nano), Amount(USD)))],
    )
    assert quarrel.shows(quarrel.request) == "open None None"
    marketplace.wait(ANSWER_NS)
    ended = [marketplace.disputes.decide(dispute_id) for dispute_id in marketplace.disputes.due(10)]
    assert [(row.reason, row.loser) for row in ended] == [("prompt", "buyer")]
    # Tokens are whole: what a sum is short of the next one is not made up for.
    owed_nano = cost_nano(quarrel.prompt_tokens, quarrel.tokens)
    assert owed_nano - cost_nano(0, 1) <= quarrel.settled() <= owed_nano
    assert marketplace.is_sound()


def test_bytes_of_another_request_prove_nothing(marketplace: Marketplace, tmp_path: Path) -> None:
    quarrel = PromptQuarrel(marketplace, tmp_path, sellers=5, buyers=0)
    before_nano = quarrel.settled()
    other = seal_request(b'{"kind":"completion","request":{"prompt":"x"}}', quarrel.key.public, quarrel.context)
    for request, by, field in ((other, None, "prompt.sealed"), (quarrel.request, other, "prompt.key")):
        with pytest.raises(StatementInvalid) as refused:
            quarrel.shows(request, by)
        assert refused.value.field == field
    ((lane, dispute),) = marketplace.disputes.of("sam", quarrel.allocation.digest)
    assert (lane.standing, dispute) == ("disputed", None)
    assert (marketplace.held("sam"), quarrel.settled()) == (0, before_nano)


def test_a_dispute_about_a_prompt_that_was_not_shown_has_no_loser(quarrel: DisputeView) -> None:
    marketplace, tokens = quarrel.marketplace, quarrel.tokens
    marketplace.ledger.credit("sam", USD)
    prices = PRICES, Amount(0), Amount(USD)
    voucher = Voucher(quarrel.terms.channel, 0, 1, DIGEST, DIGEST, *prices, quarrel.tokenizer)
    promise = signed_record("buyer", "voucher", voucher, "0", 1)
    receipts = []
    for by, prompt_tokens in (("seller", 100_000), ("buyer", 0)):
        named = quarrel.terms.channel, 0, 1, 0, promise.digest
        receipt = Receipt(*named, prompt_tokens, 0, tokens, TRANSCRIPT, is_final=True)
        receipts.append(signed_record(by, "receipt", receipt, "0", 1))
    marketplace.settle(quarrel.allocation, [promise, *receipts])
    quarrel.brings("sam")
    assert quarrel.brings("ann") == "decided small None"
    assert (marketplace.held("sam"), marketplace.posted("user:sam:paid")) == (0, USD)
