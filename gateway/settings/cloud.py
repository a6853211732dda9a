"""The cloud lane: providers, their models and prices."""

import os
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from accounting.errors import AmountInvalid
from accounting.money import Price, parse_usd
from runtime.settings import Section, WholePath

_PROXY_VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy")


class CloudModel(Section):
    model: str = Field(description="litellm's name of the model, provider first: openai/gpt-4o-mini.")
    key: str | None = Field(
        None, description="Name of the key in the keys file; by default the provider's usual one."
    )
    base_url: str | None = Field(None, description="Address in place of the provider's own.")
    prompt_usd_per_mtok: str | None = Field(None, description="Price of a million prompt tokens, as text.")
    completion_usd_per_mtok: str | None = Field(None, description="Price of a million completion tokens, as text.")
    max_output_tokens: int | None = Field(
        None,
        ge=1,
        description=(
            "Longest answer, in tokens: the limit, and the size of the hold, of a request without a limit."
        ),
    )
    clearance: Literal["public", "internal"] = Field(
        "public", description="Maximum data label: internal for a provider under contract."
    )
    region: str | None = Field(
        None, max_length=80, description="Region where it computes, for rules and preferences."
    )
    quantization: str | None = Field(
        None, max_length=40, description="Quantization of its weights, for preferences."
    )
    keeps_data: bool = Field(False, description="Whether the provider stores requests.")
    parameters: dict[str, str] = Field({}, description="Further litellm arguments, e.g. api_version.")
    secret_parameters: dict[str, str] = Field(
        {}, description="Further keys: litellm argument -> name in the keys file."
    )

    @field_validator("prompt_usd_per_mtok", "completion_usd_per_mtok")
    @classmethod
    def _is_a_price(cls, text: str | None) -> str | None:
        if text is not None:
            try:
                parse_usd(text)
            except AmountInvalid as error:
                raise ValueError(str(error)) from None
        return text

    @model_validator(mode="after")
    def _has_a_whole_price(self) -> Self:
        if (self.prompt_usd_per_mtok is None) != (self.completion_usd_per_mtok is None):
            raise ValueError("prompt_usd_per_mtok and completion_usd_per_mtok are one price: set both or neither")
        return self

    @property
    def own_price(self) -> Price | None:
        """Return the price in nano-USD per million tokens, if the owner set one; cached tokens cost the same."""
        if self.prompt_usd_per_mtok is None:
            return None
        prompt_nano = parse_usd(self.prompt_usd_per_mtok)
        return Price(prompt_nano, prompt_nano, parse_usd(self.completion_usd_per_mtok))


class CloudSettings(Section):
    models: dict[str, CloudModel] = Field(
        {},
        description="Cloud models by the name that callers use.",
        examples=['{"fast": {"model": "openai/gpt-4o-mini", "key": "OPENAI_API_KEY"}}'],
    )
    keys_file: WholePath | None = Field(
        None, description="File of NAME=VALUE lines, mode 0600; only the cloud worker reads it."
    )
    proxies: dict[str, str] = Field(
        default_factory=lambda: {name: os.environ[name] for name in _PROXY_VARIABLES if name in os.environ},
        description="HTTPS_PROXY and similar variables of the cloud worker; by default those of the environment.",
        examples=['{"HTTPS_PROXY": "http://proxy:3128"}'],
    )
    first_byte_s: float = Field(
        120.0, gt=0, le=3600, description="Timeout for the first byte of a provider's stream, in seconds."
    )
    silence_s: float = Field(
        60.0, gt=0, le=3600, description="Timeout between two events of a provider's stream, in seconds."
    )
    total_s: float = Field(
        900.0, gt=0, le=43_200, description="Maximum duration of a provider's answer, in seconds."
    )
