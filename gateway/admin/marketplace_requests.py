"""Requests to the marketplace."""

import base64
import binascii
from typing import Annotated

from pydantic import AfterValidator, Field, ValidationInfo, field_validator

from accounting.money import UsdAmount
from gateway.admin.fields import Body, Text
from market.marketplace.buyer_receipts import RECEIPTS_MAX
from market.marketplace.statements import STATEMENTS_MAX
from market.marketplace.texts import CHARS_MAX
from market.protocol.channels.evidence import EVIDENCE_MAX
from market.protocol.channels.terms import LANES_MAX
from market.protocol.counting.answer import CALLS_MAX, CHOICES_MAX
from market.protocol.records.envelope import RECORD_BYTES_MAX
from market.protocol.sealing.request import SEALED_BYTES_MAX

Id = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
Signature = Annotated[str, Field(pattern="^[0-9a-f]{128}$")]
Raw = Annotated[str, Field(min_length=2, max_length=RECORD_BYTES_MAX)]
"""A signed record, byte for byte."""
Statements = Annotated[tuple[Raw, ...], Field(max_length=STATEMENTS_MAX)]
SEALED_CHARS_MAX = -(-SEALED_BYTES_MAX // 3) * 4
"""The length of a sealed request in base64."""


DeliveredText = Annotated[str, Field(max_length=CHARS_MAX)]
ChoiceNumber = Annotated[int, Field(ge=0, lt=CHOICES_MAX)]


class NewAllocation(Body):
    """Reserve part of the caller's credits, to be spent by the identity `buyer` at the identity `seller`."""

    buyer: Id
    seller: Id
    limit: Annotated[UsdAmount, Field(gt=0)]
    hours: Annotated[int, Field(ge=1)] = 24


class NewSettlement(Body):
    """Vouchers and receipts of the allocation's channel, in any order; receipts with their vouchers."""

    allocation: Raw
    records: Annotated[tuple[Raw, ...], Field(max_length=EVIDENCE_MAX)] = ()
    statements: Statements = ()


class DisputedText(Body):
    """One choice of an answer; a call is its function's name and arguments."""

    content: DeliveredText = ""
    reasoning: DeliveredText = ""
    calls: Annotated[tuple[tuple[DeliveredText, DeliveredText], ...], Field(max_length=CALLS_MAX)] = ()


DisputedTexts = Annotated[dict[ChoiceNumber, DisputedText], Field(max_length=CHOICES_MAX)]


def _in_base64(text: str) -> str:
    try:
        base64.b64decode(text, validate=True)
    except binascii.Error:
        raise ValueError("base64 is expected") from None
    return text


class ShownPrompt(Body):
    """A request's prompt: the sealed request in base64, as it was sent, with its key and first nonce.

    These open only this request: the marketplace reads the prompt, counts it, and keeps the count.
    """

    sealed: Annotated[str, Field(min_length=4, max_length=SEALED_CHARS_MAX), AfterValidator(_in_base64)]
    key: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    nonce: Annotated[str, Field(pattern="^[0-9a-f]{24}$")]


class NewDispute(Body):
    """About a lane's newest request: texts by the number of their choice, the prompt, or receipts of it.

    `receipts` are the buyer's own, if the marketplace may lack the lane's latest, and the seller's earlier one.
    """

    allocation: Raw
    lane: Annotated[int, Field(ge=0, lt=LANES_MAX)]
    prompt: ShownPrompt | None = None
    receipts: Annotated[tuple[Raw, ...], Field(max_length=RECEIPTS_MAX)] = ()
    texts: DisputedTexts = Field(default_factory=dict, validate_default=True)

    @field_validator("texts")
    @classmethod
    def _says_something(cls, texts: DisputedTexts, info: ValidationInfo) -> DisputedTexts:
        if not texts and info.data.get("prompt") is None and not info.data.get("receipts"):
            raise ValueError("submit the delivered text, the prompt or receipts")
        return texts


class Suspended(Body):
    """`why` null reinstates the seller."""

    why: Text | None


class Forfeited(Body):
    why: Text


class NewSeller(Body):
    """`identity` earns for the caller; its current `key` has signed marketplace and account."""

    identity: Id
    key: Id
    proof: Signature
    statements: Statements = ()
