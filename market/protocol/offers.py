"""The buyer's report to the gateway: listings that can be bought now, and why others cannot."""

from typing import Literal

from msgspec import Struct

Excluded = Literal[
    "hours",
    "model",
    "own",
    "modality",
    "request_fee",
    "price",
    "label",
    "unreachable",
    "no_credit",
    "suspended",
]


class OnOffer(Struct, frozen=True):
    """A listing that can be bought. Prices are in nano-USD per million tokens, times in seconds.

    `listing` is its record's digest, `seller` the seller's identity. `clearance` is the most private label that
    may go there. `good` and `bad` count how requests ended; older ones weigh less. `cap` is learned from refusals.
    `tokenizer` counts a purchase; None stands for four bytes a token.
    `tier` says what auditors have checked. `suspended_why` says why we buy nothing there until the admin reinstates it.
    """

    listing: str
    seller: str
    name: str
    model: str
    weights: str
    tokenizer: str | None
    quantization: str
    region: str | None
    keeps_data: bool
    clearance: Literal["public", "internal"]
    context_tokens: int
    output_tokens: int
    prompt_nano: int
    cached_nano: int
    completion_nano: int
    has_tools: bool
    has_schemas: bool
    slots: int
    cap: float
    in_flight: int
    good: float
    bad: float
    at_s: float
    is_probation: bool
    is_broken: bool
    tier: str
    has_logprobs: bool = False
    audits_good: float = 0.0
    audits_bad: float = 0.0
    suspended_why: str = ""


class NotOnOffer(Struct, frozen=True):
    """A listing that cannot be bought, and why."""

    listing: str
    seller: str
    model: str
    reason: Excluded


class Offers(Struct, frozen=True):
    """All listings. `version` grows with every change, so a client can wait for the next one."""

    version: int
    offers: tuple[OnOffer, ...] = ()
    excluded: tuple[NotOnOffer, ...] = ()
