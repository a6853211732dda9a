"""Settings for counting tokens, and the cost of your machines."""

import re
from typing import Annotated, Self

from pydantic import AfterValidator, Field, model_validator

from accounting.errors import AmountInvalid
from accounting.money import parse_usd
from runtime.settings import Section, WholePath

_SHA256 = re.compile(r"[0-9a-fA-F]{64}")


def _digest(text: str) -> str:
    if not _SHA256.fullmatch(text):
        raise ValueError("a SHA-256 is 64 hexadecimal digits, as sha256sum prints them")
    return text.lower()


def _usd(text: str) -> str:
    try:
        parse_usd(text)
    except AmountInvalid as error:
        raise ValueError(str(error)) from None
    return text


Usd = Annotated[str, AfterValidator(_usd)]


class TokenizerFile(Section):
    path: WholePath = Field(description="The model's tokenizer.json.")
    sha256: Annotated[str, AfterValidator(_digest)] = Field(description="SHA-256 of the file, in hexadecimal.")


class MeteringSettings(Section):
    tokenizers: dict[str, TokenizerFile] = Field(
        {},
        description="Tokenizers that count delivered text, by the name that callers use for the model.",
        examples=['{"fast": {"path": "/models/fast/tokenizer.json", "sha256": "..."}}'],
    )
    check_ratio: float = Field(
        0.01, ge=0, le=1, description="Share of answers whose backend's count is checked, if a tokenizer is known."
    )


class CostsSettings(Section):
    electricity_usd_per_kwh: Usd = Field("0.30", description="Price of a kilowatt-hour, as text.")
    machine_usd: Usd = Field("0.00", description="Purchase price of a machine, as text, spread over its life.")
    life_years: float = Field(4.0, gt=0, le=50, description="Life of a machine, in years.")
    watts: int = Field(60, ge=0, le=1_000_000, description="Power of a machine at work, if it is not measured.")
    watts_idle: int = Field(
        0, ge=0, le=1_000_000, description="Power of an idle machine, which is not counted as work."
    )
    read_power: bool = Field(True, description="Whether the gateway's own machine is measured (RAPL, NVML).")
    machines: dict[str, Annotated[int, Field(ge=0, le=1_000_000)]] = Field(
        {},
        description="Watts of other machines at work, by node or pool backend.",
        examples=['{"desk": 350}'],
    )
    compared_with: dict[str, str] = Field(
        {},
        description="Cloud model for the comparison with your machines: a configured name, or litellm's.",
        examples=['{"llama-70b": "groq/llama-3.3-70b-versatile"}'],
    )

    @model_validator(mode="after")
    def _works_more_than_it_idles(self) -> Self:
        if self.watts_idle > self.watts:
            raise ValueError("watts_idle: must not be more than watts, the power at work")
        return self
