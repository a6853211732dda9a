"""The market lane: whether, from whom and for how much this gateway buys from other people's machines."""

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, SecretStr, field_validator, model_validator

from accounting.errors import AmountInvalid
from accounting.money import parse_usd
from runtime.settings import Section

_HEX = "^[0-9a-f]{64}$"
# Sellers end an answer there (market.protocol.channels.terms, which would make every start heavier).
_ANSWER_S_MAX = 1800


def checked_base_url(text: str) -> str:
    """A base URL that ends with its host name or port. Raises ValueError."""
    url = text.strip().rstrip("/")
    if not url.startswith(("https://", "http://")) or "/" in url.partition("://")[2] or "@" in url:
        raise ValueError("must be an address that begins with https:// and ends with its name or port")
    return url


BaseUrl = Annotated[str, AfterValidator(checked_base_url)]
Identity = Annotated[str, Field(pattern=_HEX)]


class MarketSettings(Section):
    buy_for: tuple[Literal["public", "internal"], ...] = Field(
        (),
        description="Data labels of requests that marketplace sellers may answer; none by default.",
        examples=['["public"]'],
    )
    models: tuple[str, ...] = Field(
        (), description="Models that may be bought; all if empty.", examples=['["gemma"]']
    )
    marketplace_url: BaseUrl | None = Field(None, description="Marketplace where this gateway has credits.")
    marketplace_key: SecretStr | None = Field(None, description="This gateway's API key at the marketplace.")
    marketplace_id: Identity | None = Field(
        None, description="The marketplace's identity; by default the first one that it showed."
    )
    peers: tuple[BaseUrl, ...] = Field(
        (), description="Further gateways that send listings.", examples=['["https://mill.example"]']
    )
    allocation_usd: str = Field(
        "0.50", description="Credits reserved at the marketplace for a seller at a time, in USD, as text."
    )
    prompt_usd_per_mtok_max: str = Field(
        "5.00", description="Maximum price of a million prompt tokens, in USD, as text."
    )
    completion_usd_per_mtok_max: str = Field(
        "20.00", description="Maximum price of a million completion tokens, in USD, as text."
    )
    trusted_auditors: tuple[Identity, ...] = Field(
        (), description="Identities whose findings about sellers count; the marketplace's always do."
    )
    audit_usd_per_day: str = Field(
        "0.05",
        description="Maximum cost of audits in a day, in USD, as text; 0 for no audits.",
    )
    audit_pause_s: float = Field(
        60.0, gt=0, le=86_400, description="Maximum time between a request and an audit, in seconds."
    )
    tells_findings: bool = Field(
        False, description="Send audit findings to marketplace and peers, under this gateway's own identity."
    )
    partners: tuple[Identity, ...] = Field((), description="Sellers that count as known from the start.")
    allows_loopback: bool = Field(
        False, description="Accept sellers at http://127.0.0.1 too, for tests on one machine."
    )
    first_byte_s: float = Field(20.0, gt=0, le=600, description="Timeout for a seller's first byte, in seconds.")
    silence_s: float = Field(15.0, gt=0, le=600, description="Timeout between two events of a seller, in seconds.")
    total_s: float = Field(
        900.0, gt=0, le=_ANSWER_S_MAX, description="Maximum duration of an answer, in seconds; 1800 at most."
    )

    @field_validator(
        "allocation_usd", "prompt_usd_per_mtok_max", "completion_usd_per_mtok_max", "audit_usd_per_day"
    )
    @classmethod
    def _is_an_amount(cls, text: str) -> str:
        try:
            parse_usd(text)
        except AmountInvalid as error:
            raise ValueError(str(error)) from None
        return text

    @model_validator(mode="after")
    def _can_pay(self) -> Self:
        if (self.marketplace_url is None) != (self.marketplace_key is None):
            raise ValueError("marketplace_url and marketplace_key: set both or neither")
        return self

    @property
    def is_wanted(self) -> bool:
        """Return whether this gateway buys at all."""
        return bool(self.buy_for)

    @property
    def allocation_nano(self) -> int:
        return parse_usd(self.allocation_usd)

    @property
    def audit_nano_per_day(self) -> int:
        return parse_usd(self.audit_usd_per_day)

    @property
    def prompt_nano_max(self) -> int:
        """For a million tokens."""
        return parse_usd(self.prompt_usd_per_mtok_max)

    @property
    def completion_nano_max(self) -> int:
        """For a million tokens."""
        return parse_usd(self.completion_usd_per_mtok_max)
