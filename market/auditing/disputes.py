"""Buyer and seller have signed different counts of one request: what it comes to, and who pays for it. Pure.

    within the tolerance       the buyer's count; whoever asked has wasted everybody's time
    both signed the same hash  the text with that hash is counted again; who was farther off loses
    the end was agreed on      the buyer's count; a seller who had signed for this end and claims another has lied
    each signed another hash   what both signed while the answer was coming, and beyond it the buyer's own text

The last is the one that no hash decides: a seller can keep a tail back, and a buyer can deny one. It is at most
one request of a channel, for the seller serves no more on it, and it stays on record with both: whoever has such
quarrels with many others is believed no more (`conduct`). What the prompt was can be proved (`prompts`): then what
is proved counts, and whoever has signed for another prompt loses, whatever becomes of the text. How much of it was
read from a cache the seller alone can know, and it only lowers what the seller gets: of what is proved, its word
on that counts.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from accounting.errors import AmountInvalid
from accounting.metering.delivered import Delivered
from market.channels.statements import TOLERANCE_PARTS, TOLERANCE_TOKENS, Delivery
from market.counting.answer import transcript_of
from market.counting.counting import Counting
from market.errors import StatementInvalid
from market.listings.prices import cost_nano

TEXTS_MAX = 4

Side = Literal["buyer", "seller"]
Reason = Literal[
    "small", "prompt", "recounted", "agreed_before", "buyers_text", "sellers_text", "no_text", "presumed"
]
Texts = Mapping[int, Delivered]


@dataclass(frozen=True, slots=True)
class Dispute:
    """What is known of it: each side's newest receipt about one voucher, and who asked for a decision.

    `agreed` is the buyer's newest receipt, final or not, whose hash a receipt of the seller names, too; a final
    one only where that receipt is final as well, and its count the same.
    `prompt_tokens` is what the prompt was proved to come to, None where nobody has proved it.
    """

    by_seller: Delivery
    by_buyer: Delivery
    opened_by: Side
    agreed: Delivery | None = None
    prompt_tokens: int | None = None

    @property
    def request(self) -> str:
        return self.by_seller.promise.voucher.request

    @property
    def is_small(self) -> bool:
        """Whether the counts of the answer are so near to each other that the buyer's stands, text or not."""
        return not _is_off(self.by_seller.receipt.completion_tokens, self.by_buyer.receipt.completion_tokens)

    @property
    def is_end_agreed(self) -> bool:
        """Whether the seller had signed for the end that the buyer signs for: no other text can have come."""
        return (
            self.agreed is not None and self.agreed.digest == self.by_buyer.digest and self.agreed.receipt.is_final
        )

    @property
    def is_about_prompt(self) -> bool:
        """Whether they have signed for two prompts, or for one that was read from a cache and one that was not."""
        one, other = self.by_seller.receipt, self.by_buyer.receipt
        return _is_off(one.prompt_tokens, other.prompt_tokens) or _is_off(one.cached_tokens, other.cached_tokens)

    @property
    def liar_about_prompt(self) -> Side | None:
        """Who has signed for another prompt than the one that was proved."""
        sellers, buyers = (each.receipt.prompt_tokens for each in (self.by_seller, self.by_buyer))
        if self.prompt_tokens is None or not _is_off(sellers, buyers):
            return None
        return "seller" if abs(sellers - self.prompt_tokens) > abs(buyers - self.prompt_tokens) else "buyer"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was decided. `amount_nano` is what the lane comes to with this request, as a receipt's would be.

    `loser` pays the fee; None where nothing tells who was wrong, which is kept on record with both of them.
    """

    completion_tokens: int
    amount_nano: int
    reason: Reason
    loser: Side | None


def decide(
    dispute: Dispute, texts: Iterable[Texts], counting: Counting, *, presumed_wrong: Side | None = None
) -> Verdict:
    """Decide by the texts that either side has brought; those that have neither's hash are none.

    `presumed_wrong` is who is believed no more where nothing else decides (`conduct.presumption`).

    Raises:
        StatementInvalid: the receipts are about two requests, of the same side, or the texts are too many.
    """
    _check(dispute)
    counted = _counted(dispute.request, texts, counting)
    if dispute.is_small:
        # About a prompt that nobody has proved, nobody can be told to have lied.
        loser = None if dispute.is_about_prompt else dispute.opened_by
        return _with_prompt(dispute, _verdict(dispute, dispute.by_buyer.receipt.completion_tokens, "small", loser))
    return _with_prompt(dispute, _by_text(dispute, counted, presumed_wrong))


def _by_text(dispute: Dispute, counted: Mapping[str, int], presumed_wrong: Side | None) -> Verdict:
    """`counted` is what the texts that were brought come to, by their hashes."""
    if dispute.is_end_agreed:
        return _verdict(dispute, dispute.by_buyer.receipt.completion_tokens, "agreed_before", "seller")
    hash_of_seller, hash_of_buyer = (each.receipt.transcript for each in (dispute.by_seller, dispute.by_buyer))
    if hash_of_seller != hash_of_buyer:
        return _by_two_texts(dispute, counted.get(hash_of_seller), counted.get(hash_of_buyer), presumed_wrong)
    if hash_of_seller not in counted:
        return _without_text(dispute)
    tokens = counted[hash_of_seller]
    off_seller = abs(dispute.by_seller.receipt.completion_tokens - tokens)
    off_buyer = abs(dispute.by_buyer.receipt.completion_tokens - tokens)
    return _verdict(dispute, tokens, "recounted", "seller" if off_seller > off_buyer else "buyer")


def _with_prompt(dispute: Dispute, verdict: Verdict) -> Verdict:
    """Who has lied about the prompt has lost, unless a text has proved a lie of the other side, too."""
    liar = dispute.liar_about_prompt
    if liar is None or verdict.reason == "recounted":
        return verdict
    return replace(verdict, loser=liar, reason="prompt")


def _by_two_texts(
    dispute: Dispute, sellers: int | None, buyers: int | None, presumed_wrong: Side | None
) -> Verdict:
    """`sellers` and `buyers` are the counts of the texts that they signed, where somebody has brought them."""
    if sellers is not None and presumed_wrong == "buyer":
        return _verdict(dispute, sellers, "presumed", "buyer")
    signed = dispute.by_buyer.receipt.completion_tokens
    if buyers is None:
        if sellers is None:
            return _without_text(dispute)
        # Whoever denies a text must show the one that came instead.
        return _verdict(dispute, sellers, "sellers_text", "buyer")
    if buyers > signed and _is_off(buyers, signed):
        return _verdict(dispute, buyers, "buyers_text", "buyer")
    agreed = dispute.agreed.receipt.completion_tokens if dispute.agreed else 0
    loser: Side | None = "seller" if sellers is None or presumed_wrong == "seller" else None
    if agreed > max(buyers, signed):
        return _verdict(dispute, agreed, "agreed_before", "buyer")
    return _verdict(dispute, max(buyers, agreed), "buyers_text", loser)


def _without_text(dispute: Dispute) -> Verdict:
    """Nobody has shown what the counts are of: whoever asked for a decision has not made their case."""
    winner = dispute.by_buyer if dispute.opened_by == "seller" else dispute.by_seller
    return _verdict(dispute, winner.receipt.completion_tokens, "no_text", dispute.opened_by)


def _verdict(dispute: Dispute, completion_tokens: int, reason: Reason, loser: Side | None) -> Verdict:
    """Never more than the seller asked for, nor less than the buyer has signed."""
    voucher, signed = dispute.by_buyer.promise.voucher, dispute.by_buyer.receipt
    prompt_tokens, cached_tokens = signed.prompt_tokens, signed.cached_tokens
    if dispute.prompt_tokens is not None:
        prompt_tokens, cached_tokens = dispute.prompt_tokens, dispute.by_seller.receipt.cached_tokens
    try:
        nano = cost_nano(voucher.prices, prompt_tokens, min(cached_tokens, prompt_tokens), completion_tokens)
    except AmountInvalid as error:
        raise StatementInvalid(f"what was counted has no price: {error}") from None
    reached_nano = min(voucher.base_nano + nano, dispute.by_seller.amount_nano)
    return Verdict(completion_tokens, max(reached_nano, dispute.by_buyer.amount_nano), reason, loser)


def _counted(request: str, texts: Iterable[Texts], counting: Counting) -> dict[str, int]:
    """Tokens of the texts by their hashes."""
    counted = {}
    for number, each in enumerate(texts):
        if number >= TEXTS_MAX:
            raise StatementInvalid(f"at most {TEXTS_MAX} texts decide a dispute")
        counted[transcript_of(request, each)] = counting.delivered(each.values()).completion_tokens
    return counted


def _is_off(one: int, other: int) -> bool:
    return abs(one - other) > max(TOLERANCE_TOKENS, max(one, other) // TOLERANCE_PARTS)


def _check(dispute: Dispute) -> None:
    receipts = [each for each in (dispute.by_seller, dispute.by_buyer, dispute.agreed) if each]
    if len({each.promise.digest for each in receipts}) > 1:
        raise StatementInvalid("a dispute is about one voucher")
    if dispute.by_seller.record.issuer == dispute.by_buyer.record.issuer:
        raise StatementInvalid("a dispute has two sides")
