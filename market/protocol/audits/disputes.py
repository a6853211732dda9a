"""Decide disputes: buyer and seller signed different counts of one request. What is due, and who loses? Pure.

    within the tolerance       the buyer's count; the party that asked loses, because it was not worth a dispute
    both signed the same hash  the text with that hash is counted again; the party farther off loses
    the end was agreed on      the buyer's count; a seller that signed this end and claims another has lied
    each signed another hash   what both signed while the answer came, and beyond it the buyer's own text

No hash decides the last case: a seller can withhold a tail, and a buyer can deny one. It affects at most one
request of a channel, because the seller then stops serving on it. Both keep it on record, and an account with such
disputes with many others is no longer believed (`conduct`). The prompt can be proved (`prompts`). Then the proved
count applies, and a party that signed another prompt loses, whatever the text. Only the seller knows how much of
the prompt came from a cache. That only lowers its pay, so for a proved prompt its word on this counts.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from accounting.errors import AmountInvalid
from accounting.metering.delivered import Delivered
from market.errors import StatementInvalid
from market.protocol.channels.statements import TOLERANCE_PARTS, TOLERANCE_TOKENS, Delivery
from market.protocol.counting.answer import transcript_of
from market.protocol.counting.token_count import Counting
from market.protocol.listings.prices import cost_nano

TEXTS_MAX = 4

Side = Literal["buyer", "seller"]
Reason = Literal[
    "small", "prompt", "recounted", "agreed_before", "buyers_text", "sellers_text", "no_text", "presumed"
]
Texts = Mapping[int, Delivered]


@dataclass(frozen=True, slots=True)
class Dispute:
    """The known facts: each side's newest receipt for one voucher, and who asked for a decision.

    `agreed` is the buyer's newest receipt, final or not, whose hash a receipt of the seller names too. A final one
    counts only if that receipt is final as well and has the same count. `prompt_tokens` is the proved count of the
    prompt, or None without a proof.
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
        """Return whether the counts are so close that the buyer's applies, with or without a text."""
        return not _is_off(self.by_seller.receipt.completion_tokens, self.by_buyer.receipt.completion_tokens)

    @property
    def is_end_agreed(self) -> bool:
        """Return whether the seller signed the same end as the buyer, so that no other text can have come."""
        return (
            self.agreed is not None and self.agreed.digest == self.by_buyer.digest and self.agreed.receipt.is_final
        )

    @property
    def is_about_prompt(self) -> bool:
        """Return whether they signed for different prompts, or disagree about what came from a cache."""
        one, other = self.by_seller.receipt, self.by_buyer.receipt
        return _is_off(one.prompt_tokens, other.prompt_tokens) or _is_off(one.cached_tokens, other.cached_tokens)

    @property
    def liar_about_prompt(self) -> Side | None:
        """The party that signed another prompt than the proved one."""
        sellers, buyers = (each.receipt.prompt_tokens for each in (self.by_seller, self.by_buyer))
        if self.prompt_tokens is None or not _is_off(sellers, buyers):
            return None
        return "seller" if abs(sellers - self.prompt_tokens) > abs(buyers - self.prompt_tokens) else "buyer"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The decision. `amount_nano` is the lane's sum with this request, as in a receipt.

    `loser` pays the fee. It is None if nothing shows who was wrong; both keep that on record.
    """

    completion_tokens: int
    amount_nano: int
    reason: Reason
    loser: Side | None


def decide(
    dispute: Dispute, texts: Iterable[Texts], counting: Counting, *, presumed_wrong: Side | None = None
) -> Verdict:
    """Decide by the texts that either side has submitted. Texts with neither's hash are ignored.

    `presumed_wrong` is the party that is presumed wrong if nothing else decides (`conduct.presumption`).

    Raises:
        StatementInvalid: the receipts are about two requests or of one side, or there are too many texts.
    """
    _check(dispute)
    counted = _counted(dispute.request, texts, counting)
    if dispute.is_small:
        # Without a proved prompt, no party can be said to have lied about it.
        loser = None if dispute.is_about_prompt else dispute.opened_by
        return _with_prompt(dispute, _verdict(dispute, dispute.by_buyer.receipt.completion_tokens, "small", loser))
    return _with_prompt(dispute, _by_text(dispute, counted, presumed_wrong))


def _by_text(dispute: Dispute, counted: Mapping[str, int], presumed_wrong: Side | None) -> Verdict:
    """Decide by the counts of the submitted texts, by their hashes."""
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
    """Make the liar about the prompt lose, unless a text has proved a lie of the other side."""
    liar = dispute.liar_about_prompt
    if liar is None or verdict.reason == "recounted":
        return verdict
    return replace(verdict, loser=liar, reason="prompt")


def _by_two_texts(
    dispute: Dispute, sellers: int | None, buyers: int | None, presumed_wrong: Side | None
) -> Verdict:
    """Decide by `sellers` and `buyers`, the counts of the texts that they signed, or None if not submitted."""
    if sellers is not None and presumed_wrong == "buyer":
        return _verdict(dispute, sellers, "presumed", "buyer")
    signed = dispute.by_buyer.receipt.completion_tokens
    if buyers is None:
        if sellers is None:
            return _without_text(dispute)
        # A buyer that denies a text must show the one that came instead.
        return _verdict(dispute, sellers, "sellers_text", "buyer")
    if buyers > signed and _is_off(buyers, signed):
        return _verdict(dispute, buyers, "buyers_text", "buyer")
    agreed = dispute.agreed.receipt.completion_tokens if dispute.agreed else 0
    loser: Side | None = "seller" if sellers is None or presumed_wrong == "seller" else None
    if agreed > max(buyers, signed):
        return _verdict(dispute, agreed, "agreed_before", "buyer")
    return _verdict(dispute, max(buyers, agreed), "buyers_text", loser)


def _without_text(dispute: Dispute) -> Verdict:
    """Decide without a text: the party that asked for a decision has not proved its case."""
    winner = dispute.by_buyer if dispute.opened_by == "seller" else dispute.by_seller
    return _verdict(dispute, winner.receipt.completion_tokens, "no_text", dispute.opened_by)


def _verdict(dispute: Dispute, completion_tokens: int, reason: Reason, loser: Side | None) -> Verdict:
    """Return a verdict between what the buyer signed and what the seller asked for."""
    voucher, signed = dispute.by_buyer.promise.voucher, dispute.by_buyer.receipt
    prompt_tokens, cached_tokens = signed.prompt_tokens, signed.cached_tokens
    if dispute.prompt_tokens is not None:
        prompt_tokens, cached_tokens = dispute.prompt_tokens, dispute.by_seller.receipt.cached_tokens
    try:
        nano = cost_nano(voucher.prices, prompt_tokens, min(cached_tokens, prompt_tokens), completion_tokens)
    except AmountInvalid as error:
        raise StatementInvalid(f"the counted tokens have no price: {error}") from None
    reached_nano = min(voucher.base_nano + nano, dispute.by_seller.amount_nano)
    return Verdict(completion_tokens, max(reached_nano, dispute.by_buyer.amount_nano), reason, loser)


def _counted(request: str, texts: Iterable[Texts], counting: Counting) -> dict[str, int]:
    """Return the tokens of the texts by their hashes."""
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
        raise StatementInvalid("a dispute must be about one voucher")
    if dispute.by_seller.record.issuer == dispute.by_buyer.record.issuer:
        raise StatementInvalid("a dispute must have two sides")
