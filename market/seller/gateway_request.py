"""Check a buyer's request before any model is used: known fields, text only, no longer than paid for."""

import re
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from market.errors import RequestNotCounted
from market.protocol.channels.admission import PricedRequest
from market.protocol.channels.job import JobBody, Kind
from market.protocol.channels.statements import Voucher
from market.protocol.counting.token_count import Counting
from market.protocol.listings.listing import ContentFlag
from market.protocol.listings.prices import cost_nano
from market.seller.carrier import JobRefused
from market.seller.live_listings import ListingOffer

CHOICES_MAX = 16
_BOTH = frozenset(
    (
        *("temperature", "top_p", "n", "stop", "seed", "presence_penalty", "frequency_penalty", "logit_bias"),
        *("logprobs", "max_tokens", "top_k", "min_p", "repetition_penalty"),
    )
)
_CHAT = frozenset(
    (
        *("messages", "top_logprobs", "max_completion_tokens", "tools", "tool_choice", "parallel_tool_calls"),
        *("response_format", "reasoning_effort", "functions", "function_call"),
    )
)
TEMPLATE_TOKENS = 64
TEMPLATE_PARTS = 16
"""Tokens left free for the backend's own template, which the market's count does not know: this many, plus a
sixteenth of the prompt.
"""
_FIELDS: dict[Kind, frozenset[str]] = {"chat": _BOTH | _CHAT, "completion": _BOTH | {"prompt"}}
_IGNORED = frozenset(("model", "stream", "stream_options"))


@dataclass(frozen=True, slots=True)
class GatewayRequest:
    """The request for our own gateway, and the prompt's token count that all parties agree on."""

    kind: Kind
    body: dict[str, Any]
    prompt_tokens: int
    priced: PricedRequest


def gateway_request_of(job_body: JobBody, offer: ListingOffer, voucher: Voucher) -> GatewayRequest:
    """Return the request for our own gateway: known fields only, no longer than paid for.

    Slow: it counts the prompt's tokens.

    Raises:
        JobRefused: the request does not fit this offer, is too long, or the voucher does not pay for it.
    """
    request = {
        name: value for name, value in job_body.request.items() if name not in _IGNORED and value is not None
    }
    if unknown := sorted(request.keys() - _FIELDS[job_body.kind]):
        raise JobRefused("malformed", f"Sellers do not accept the field {unknown[0][:80]}. Leave it out.")
    choices = _choices(request)
    sellable = offer.sellable
    prompt_tokens = _prompt_tokens(sellable.counting_of(voucher), request, job_body.kind)
    # Whatever counts the price, the model's own tokens must fit its context.
    model_tokens = (
        prompt_tokens if voucher.tokenizer else _prompt_tokens(sellable.counting, request, job_body.kind)
    )
    paid_tokens = _paid_tokens(voucher, prompt_tokens) // choices
    most_tokens = _most_tokens(request, model_tokens, paid_tokens, offer)
    request.pop("max_completion_tokens", None)
    body = request | {"model": sellable.sold.model, "stream": True, "max_tokens": most_tokens}
    least_tokens = max(1, offer.listing.capacity.min_completion_tokens)
    least_nano = cost_nano(offer.listing.pricing, prompt_tokens, 0, least_tokens)
    return GatewayRequest(job_body.kind, body, prompt_tokens, PricedRequest(voucher.request, least_nano))


def _choices(request: Mapping[str, Any]) -> int:
    choices = request.get("n", 1)
    if type(choices) is not int or not 1 <= choices <= CHOICES_MAX:
        raise JobRefused("malformed", f"n must be a whole number from 1 to {CHOICES_MAX}.")
    prompt = request.get("prompt", "")
    if not isinstance(prompt, str):
        raise JobRefused("malformed", "prompt must be one string. Send one request for each.")
    return choices


def _prompt_tokens(counting: Counting, request: Mapping[str, Any], kind: Kind) -> int:
    needed = "messages" if kind == "chat" else "prompt"
    if not request.get(needed):
        raise JobRefused("malformed", f"{needed} is missing.")
    try:
        return counting.prompt_tokens(request)
    except RequestNotCounted as error:
        raise JobRefused("malformed", f"{error}.") from None


def _most_tokens(request: Mapping[str, Any], prompt_tokens: int, paid_tokens: int, offer: ListingOffer) -> int:
    """Return how long each choice may become: the minimum of the requested, offered, fitting and paid numbers."""
    listing = offer.listing
    room = listing.context_length - prompt_tokens
    if room < 1:
        raise JobRefused(
            "too_long", f"The prompt has {prompt_tokens} tokens. At most {listing.context_length} are offered."
        )
    limits: list[int] = [request[name] for name in ("max_tokens", "max_completion_tokens") if name in request]
    if any(type(each) is not int or each < 1 for each in limits):
        raise JobRefused("malformed", "max_tokens must be a whole number above 0.")
    if paid_tokens < 1:
        raise JobRefused("low", "The voucher's ceiling does not pay for the prompt and a token of each choice.")
    fits = max(1, room - TEMPLATE_TOKENS - prompt_tokens // TEMPLATE_PARTS)
    return min(listing.max_output_length, fits, paid_tokens, *limits)


def _paid_tokens(voucher: Voucher, prompt_tokens: int) -> int:
    """Return how many completion tokens the voucher pays for after the prompt; 0 if not even one."""
    left_nano = int(voucher.ceiling_nano - voucher.base_nano)
    prices = voucher.prices
    left_nano -= int(prices.request)
    # Prompt and answer are rounded up as one sum, so compute with millionths of a nano-USD.
    left_parts = left_nano * 10**6 - prompt_tokens * int(prices.prompt)
    if left_parts < 0 or left_nano < 0:
        return 0
    return left_parts // int(prices.completion) if prices.completion else 2**30


@dataclass(frozen=True, slots=True)
class Blocked:
    """The owner's blocked phrases, by kind of content: a plain filter that matches exact phrases."""

    phrases: Mapping[ContentFlag, re.Pattern[str]]

    @classmethod
    def of(cls, refuses: Mapping[ContentFlag, tuple[str, ...]]) -> "Blocked":
        found = {flag: "|".join(re.escape(_plain(each)) for each in each_of) for flag, each_of in refuses.items()}
        return cls({flag: re.compile(rf"(?<!\w)(?:{joined})(?!\w)") for flag, joined in found.items() if joined})

    def check(self, request: Mapping[str, Any]) -> None:
        """Raises JobRefused if the owner does not want this content."""
        if not self.phrases:
            return
        for text in map(_plain, _texts(request)):
            for flag, pattern in self.phrases.items():
                if pattern.search(text):
                    raise JobRefused("content", f"This seller accepts no requests about {flag}.")


def _plain(text: str) -> str:
    """Normalize width, case and spaces."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def _texts(value: Any, depth: int = 12) -> Iterator[str]:
    """Yield every text of a request, at any depth."""
    if isinstance(value, str):
        yield value
    elif depth and isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _texts(each, depth - 1)
