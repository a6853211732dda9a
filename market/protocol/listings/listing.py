"""Define a listing: one model that one seller offers, in a record that it signs again at least every ten minutes.

Names follow OpenRouter where it has them. Prices are nano-USD per million tokens, as decimal strings.
"""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from market.errors import ListingInvalid
from market.protocol.listings.endpoint import URL_MAX, check_endpoint
from market.protocol.listings.hours import WeeklyWindow, is_open
from market.protocol.listings.idle import IdleRule
from market.protocol.listings.prices import Prices
from market.protocol.records.envelope import Count, Hex32, Record

Quantization = Literal[
    "int4", "int8", "fp4", "mxfp4", "nvfp4", "fp6", "fp8", "mxfp8", "fp16", "bf16", "fp32", "unknown"
]
Modality = Literal["text", "image", "audio", "file"]
Feature = Literal["tools", "json_mode", "structured_outputs", "logprobs", "reasoning"]
ContentFlag = Literal[
    "adult", "violence", "weapons", "drugs", "self_harm", "medical", "legal", "finance", "politics"
]
Tier = Literal["declared", "canary", "logprob", "redundancy", "toploc", "tee"]
TIERS: tuple[Tier, ...] = ("declared", "canary", "logprob", "redundancy", "toploc", "tee")
"""The audit level, from none upwards.

`logprob`, `toploc` and `tee` are reserved. None proves that a model is the listed one.
"""

Id = Annotated[str, Meta(min_length=1, max_length=200)]
CountryCode = Annotated[str, Meta(pattern=r"^[A-Z]{2}\Z")]
Length = Annotated[int, Meta(ge=1, le=2**30)]
Share = Annotated[int, Meta(ge=0, le=10**6)]


class Datacenter(Struct, frozen=True):
    """The location of the machines: the ISO 3166 country, and a region of it if the seller names one."""

    country_code: CountryCode
    region: Annotated[str, Meta(max_length=64)] = ""


class DataPolicy(Struct, frozen=True):
    """The seller's statement about its use of data. It can do otherwise, so buyers decide by their data labels."""

    retains_prompts: bool
    may_publish: bool
    training: bool
    retention_days: Annotated[int, Meta(ge=0, le=3650)] = 0

    @property
    def is_zdr(self) -> bool:
        """Zero data retention, as in OpenRouter's `zdr`."""
        return not (self.retains_prompts or self.may_publish or self.training or self.retention_days)


class Capacity(Struct, frozen=True):
    """Concurrent requests, tokens per second of each, longest queue, and smallest accepted answer."""

    slots: Annotated[int, Meta(ge=1, le=4096)]
    tokens_per_second: Share
    queue: Share = 0
    min_completion_tokens: Share = 0


class Evidence(Struct, frozen=True):
    """An auditor's result: what was audited, when, and the digest of the findings."""

    tier: Tier
    auditor: Hex32
    made_ms: Count
    digest: Hex32


class Listing(Struct, frozen=True):
    """A listing. `endpoint` is None for a seller without a tunnel, which fetches its work.

    `sealing_key` is the X25519 key for sealing bodies. `refuses` are kinds of content that the owner does not want
    on these machines.
    """

    id: Id
    hugging_face_id: Annotated[str, Meta(max_length=200)]
    weights_sha256: Hex32
    tokenizer_sha256: Hex32
    quantization: Quantization
    context_length: Length
    max_output_length: Length
    pricing: Prices
    datacenters: Annotated[tuple[Datacenter, ...], Meta(min_length=1, max_length=8)]
    data_policy: DataPolicy
    capacity: Capacity
    sealing_key: Hex32
    endpoint: Annotated[str, Meta(max_length=URL_MAX)] | None = None
    engine: Annotated[str, Meta(max_length=64)] = ""
    input_modalities: Annotated[tuple[Modality, ...], Meta(max_length=8)] = ("text",)
    output_modalities: Annotated[tuple[Modality, ...], Meta(max_length=8)] = ("text",)
    supported_features: Annotated[tuple[Feature, ...], Meta(max_length=16)] = ()
    refuses: Annotated[tuple[ContentFlag, ...], Meta(max_length=16)] = ()
    hours: Annotated[tuple[WeeklyWindow, ...], Meta(max_length=21)] = ()
    idle: IdleRule = IdleRule()
    evidence: Annotated[tuple[Evidence, ...], Meta(max_length=16)] = ()
    is_ready: bool = True


def read_listing(record: Record, *, allows_loopback: bool = False) -> Listing:
    """Read a listing and check that it is consistent.

    Raises:
        RecordInvalid: a field is not what it must be.
        ListingInvalid: it contradicts itself.
    """
    listing = record.read("listing", Listing)
    if listing.max_output_length > listing.context_length:
        raise ListingInvalid("max_output_length", "is longer than the context")
    if listing.pricing.input_cache_read > listing.pricing.prompt:
        raise ListingInvalid("pricing.input_cache_read", "is higher than the price of the prompt")
    if not listing.data_policy.retains_prompts and listing.data_policy.retention_days:
        raise ListingInvalid("data_policy.retention_days", "is set, although no prompts are retained")
    if listing.endpoint is not None:
        check_endpoint(listing.endpoint, allows_loopback=allows_loopback)
    return listing


def is_on_offer(listing: Listing, now_ms: int) -> bool:
    """Return whether the listing is ready and within its hours."""
    return listing.is_ready and is_open(listing.hours, now_ms)
