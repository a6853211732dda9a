"""Represent money as integers: nano-USD, token prices, and one rounding per request.

One unit is a billionth of a dollar. A short answer of a small model costs a few hundred of them, and micro-dollars
would round that up by a fifth. No amount is ever a float.
"""

import re
from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal
from typing import Annotated, NewType

from pydantic import BeforeValidator, PlainSerializer

from accounting.errors import AmountInvalid

Nano = NewType("Nano", int)

NANO_PER_USD = 10**9
TOKENS_PER_PRICE = 10**6
MAX_EVENT_NANO = 10**15
"""The most that one leg of an event may move: a million dollars. A larger amount is a mistake, not a payment."""
MAX_TOKENS = 10**9
"""The most tokens that one request may count: far above any existing context."""

_USD = re.compile(r"(-?)(0|[1-9][0-9]{0,9})(?:\.([0-9]{1,9}))?")
_USD_PER_TOKEN = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,25})?(?:[eE][-+]?[0-9]{1,2})?")


def parse_usd(text: object, *, allow_negative: bool = False) -> Nano:
    """Parse dollars in a plain decimal string ("5.00") into nano-USD.

    Plain means ASCII digits, at most nine of them after the point: no exponent, plus sign, space, underscore or
    NaN. A number that JSON already turned into a float is refused.

    Raises:
        AmountInvalid: the text is anything else, or the amount exceeds `MAX_EVENT_NANO`.
    """
    match = _USD.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise AmountInvalid("an amount must be a decimal string in USD with at most 9 digits after the point")
    sign, whole, fraction = match.groups()
    nano = int(whole) * NANO_PER_USD + int((fraction or "").ljust(9, "0"))
    if sign and not allow_negative:
        raise AmountInvalid("an amount may not be negative here")
    return checked_nano(-nano if sign else nano, allow_negative=allow_negative)


def format_usd(amount_nano: int) -> str:
    """Format nano-USD as a decimal string in USD: two decimals at least, and no trailing zeros after them."""
    whole, nano = divmod(abs(amount_nano), NANO_PER_USD)
    fraction = f"{nano:09d}"
    cents, rest = fraction[:2], fraction[2:].rstrip("0")
    return f"{'-' if amount_nano < 0 else ''}{whole}.{cents}{rest}"


def checked_nano(amount_nano: int, *, allow_negative: bool = False) -> Nano:
    """Return the amount if an event may carry it.

    Raises:
        AmountInvalid: the amount is no int (a bool is none), is negative where that is not allowed, or exceeds
            `MAX_EVENT_NANO` on either side.
    """
    if type(amount_nano) is not int:
        raise AmountInvalid(f"an amount must be an integer, not {type(amount_nano).__name__}")
    if not (-MAX_EVENT_NANO if allow_negative else 0) <= amount_nano <= MAX_EVENT_NANO:
        raise AmountInvalid("the amount is outside of what one event may move")
    return Nano(amount_nano)


def _usd_field(value: object) -> Nano:
    try:
        return parse_usd(value)
    except AmountInvalid as error:
        raise ValueError(str(error)) from None


UsdAmount = Annotated[Nano, BeforeValidator(_usd_field), PlainSerializer(format_usd, return_type=str)]
"""An amount at the API's edge: a decimal string in USD in JSON, nano-USD inside. For pydantic models."""


@dataclass(frozen=True, slots=True)
class Price:
    """The price of tokens, in nano-USD (or nano compute units) per million.

    `reasoning_nano` is None if reasoning tokens cost the same as all other completion tokens.
    """

    prompt_nano: int
    cached_nano: int
    completion_nano: int
    reasoning_nano: int | None = None

    def __post_init__(self) -> None:
        for nano in (self.prompt_nano, self.cached_nano, self.completion_nano, self.reasoning_nano or 0):
            checked_nano(nano)

    @property
    def dearest_completion_nano(self) -> int:
        """The higher of the prices that a completion token may have."""
        return max(self.completion_nano, self.reasoning_nano or 0)


def charge(
    price: Price, prompt_tokens: int, cached_tokens: int, completion_tokens: int, reasoning_tokens: int = 0
) -> Nano:
    """Return what a request costs in nano-USD, rounded up once at the end.

    As in OpenAI's usage object, `cached_tokens` are part of `prompt_tokens`, and `reasoning_tokens` are part of
    `completion_tokens`.

    Raises:
        AmountInvalid: a count is negative or exceeds `MAX_TOKENS`, a part exceeds its whole, or the result
            exceeds `MAX_EVENT_NANO`.
    """
    is_prompt = 0 <= cached_tokens <= prompt_tokens <= MAX_TOKENS
    if not (is_prompt and 0 <= reasoning_tokens <= completion_tokens <= MAX_TOKENS):
        raise AmountInvalid(
            f"a request cannot have {prompt_tokens} ({cached_tokens} cached) + {completion_tokens} tokens"
            f" ({reasoning_tokens} reasoning)"
        )
    reasoning_nano = price.completion_nano if price.reasoning_nano is None else price.reasoning_nano
    total = (
        (prompt_tokens - cached_tokens) * price.prompt_nano
        + cached_tokens * price.cached_nano
        + (completion_tokens - reasoning_tokens) * price.completion_nano
        + reasoning_tokens * reasoning_nano
    )
    return checked_nano(-(-total // TOKENS_PER_PRICE))


def nano_per_million(usd_per_token: object) -> Nano:
    """Turn a provider's price in USD per token into nano-USD per million tokens, rounded up.

    Exponents are allowed, because price lists write 1.5e-07. Binary floats are not: parse the list with
    `parse_float=Decimal`.

    Raises:
        AmountInvalid: the price is not a finite number from zero up, or exceeds `MAX_EVENT_NANO`.
    """
    text = str(usd_per_token) if isinstance(usd_per_token, str | Decimal | int) else ""
    if not _USD_PER_TOKEN.fullmatch(text):
        raise AmountInvalid(f"{usd_per_token!r} is not a price in USD per token")
    return checked_nano(int(Decimal(text).scaleb(15).to_integral_value(ROUND_CEILING)))
