"""Settings of selling: the models for sale, the times, and the prices."""

from typing import Annotated, Literal, Self

from pydantic import Field, SecretStr, model_validator

from accounting.money import Nano, UsdAmount
from market.protocol.listings.listing import ContentFlag, Feature, Quantization
from runtime.settings import Section, WholePath

Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
_TIME = "^([01][0-9]|2[0-3]):[0-5][0-9]$"
Phrase = Annotated[str, Field(min_length=2, max_length=200)]


class SoldModel(Section):
    """One model that is offered. What its backend tells need not be given."""

    model: str = Field(min_length=1, max_length=200, description="Name of the model in this gateway.")
    id: str = Field("", max_length=200, description="Name on the market: OpenRouter's if there is one.")
    hugging_face_id: str = Field("", max_length=200, description="Name at Hugging Face.")
    prompt_usd_per_mtok: UsdAmount = Field(description="Price of a million prompt tokens, as text.")
    completion_usd_per_mtok: UsdAmount = Field(description="Price of a million completion tokens, as text.")
    request_usd: UsdAmount = Field(Nano(0), validate_default=False, description="Price of each answer, as text.")
    weights_sha256: Sha256 | None = Field(None, description="SHA-256 of the weights, if the backend reports none.")
    tokenizer: WholePath | None = Field(None, description="tokenizer.json that counts prompts and answers.")
    quantization: Quantization | None = Field(
        None, description="Quantization of its weights, if the backend reports none."
    )
    context_tokens: int | None = Field(None, ge=1, le=2**30, description="Maximum offered context, in tokens.")
    max_output_tokens: int | None = Field(None, ge=1, le=2**30, description="Maximum offered answer, in tokens.")
    slots_max: int | None = Field(None, ge=1, le=4096, description="Maximum number of concurrent market jobs.")
    features: tuple[Feature, ...] = Field(
        (), description="Features of the model in addition to text, for buyers' filters."
    )
    tokens_per_second: int = Field(0, ge=0, le=10**6, description="Expected tokens per second of an answer.")

    @property
    def market_id(self) -> str:
        return self.id or self.model


class SellingWindow(Section):
    """Weekly hours: from one time of day until another, at an offset from UTC."""

    days: tuple[Annotated[int, Field(ge=0, le=6)], ...] = Field(
        description="Weekdays on which the window begins; 0 is Monday."
    )
    begins: str = Field(pattern=_TIME, description="Time of day.")
    ends: str = Field(
        pattern=_TIME, description="Time of day; on the next day if it is not later than the beginning."
    )
    utc_offset: str = Field("+00:00", pattern="^[+-](0[0-9]|1[0-4]):[0-5][0-9]$", description="Offset from UTC.")


class SellingSettings(Section):
    models: tuple[SoldModel, ...] = Field(
        (),
        description="Models for sale, each with its price.",
        examples=['[{"model": "m", "prompt_usd_per_mtok": "0.05", "completion_usd_per_mtok": "0.20"}]'],
    )
    country_code: str = Field(
        "ZZ", pattern="^[A-Z]{2}$", description="ISO 3166 country code of the machines; ZZ hides it."
    )
    region: str = Field("", max_length=64, description="Region of that country.")
    retains_prompts: bool = Field(False, description="Whether you store what buyers send.")
    may_publish: bool = Field(False, description="Whether you may publish what buyers send.")
    training: bool = Field(False, description="Whether you may train on what buyers send.")
    retention_days: int = Field(0, ge=0, le=3650, description="How long you store it, in days.")
    hours: tuple[SellingWindow, ...] = Field(
        (),
        description="Weekly windows in which models are sold; always if empty.",
        examples=['[{"days": [0, 1], "begins": "22:00", "ends": "07:00", "utc_offset": "+01:00"}]'],
    )
    queue_empty_minutes: int = Field(
        5, ge=0, le=1440, description="Minutes without a request of your own before models are sold."
    )
    gpu_percent_max: int = Field(
        100,
        ge=0,
        le=100,
        description="Share of the accelerator that other programs may use, in percent; 100: ignore.",
    )
    on_battery: bool = Field(False, description="Whether models are sold while the machine runs on battery.")
    min_completion_tokens: int = Field(
        0, ge=0, le=10**6, description="Minimum number of tokens that a request must pay for."
    )
    refuses: dict[ContentFlag, tuple[Phrase, ...]] = Field(
        {},
        description="Kinds of unwanted content, each with phrases that are refused.",
        examples=['{"weapons": ["pipe bomb"]}'],
    )
    marketplace_url: str | None = Field(
        None, description="Address of the marketplace whose allocations are accepted."
    )
    marketplace_key: SecretStr | None = Field(None, description="API key of your account at the marketplace.")
    shows_denied_prompts: bool = Field(
        True, description="Whether the marketplace is shown a prompt that its buyer denies, to be paid for it."
    )
    peers: tuple[str, ...] = Field((), description="Addresses of gateways that get listings.")
    port: int = Field(0, ge=0, le=65535, description="Port of the agent on 127.0.0.1; 0 selects a free one.")
    drain_s: int = Field(30, ge=0, le=600, description="How long a stop waits for running answers, in seconds.")
    submit_s: float = Field(
        300.0, ge=1, le=86_400, description="Interval of sending receipts to the marketplace, in seconds."
    )
    tunnel: Literal["quick", "named", "none", "loopback"] = Field(
        "quick",
        description=(
            "quick or named: by cloudflared, without or with an account; none: work is "
            "fetched; loopback: for tests."
        ),
    )
    tunnel_token_file: WholePath | None = Field(
        None, description="File with the token of a named tunnel, mode 0600."
    )
    public_url: str = Field("", max_length=253, description="Address of the named tunnel, https://name.")
    cloudflared: str = Field("cloudflared", min_length=1, description="Path of the program cloudflared.")
    allows_loopback: bool = Field(
        False, description="Whether peers, marketplace and buyers may be on this machine."
    )

    @model_validator(mode="after")
    def _names_its_tunnel(self) -> Self:
        if self.tunnel == "named" and (self.tunnel_token_file is None or not self.public_url):
            raise ValueError("tunnel: a named tunnel needs tunnel_token_file, public_url and port")
        if self.tunnel == "named" and not self.port:
            raise ValueError("port: must be the port that the named tunnel leads to, as set at Cloudflare")
        if self.tunnel == "loopback" and not self.allows_loopback:
            raise ValueError("tunnel: loopback is for buyers on this machine; to use it, set allows_loopback")
        return self
