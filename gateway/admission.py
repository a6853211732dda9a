"""Whether there is room for one more request, and the money put aside before a paid one is sent."""

from accounting import holds
from accounting.metering import tokens_max
from accounting.rules import Hold
from gateway.books import Books
from gateway.errors import Overloaded
from gateway.identity.caller import Caller
from gateway.lanes.base import Call, Offer
from gateway.openai import ChatRequest

# An answer that takes longer than this has long been ended by the lanes' own patience.
HOLD_LASTS_S = 1200.0
_OUTPUT_TOKENS = 16_384
_FORMAT_TOKENS = 16
_MEDIA_TOKENS = 4096


class Admission:
    """Counts requests being answered; one event loop owns it."""

    def __init__(self, requests_max: int) -> None:
        self._requests_max = requests_max
        self.in_flight = 0

    def enter(self) -> None:
        """Raises Overloaded. Whoever enters must leave."""
        if self.in_flight >= self._requests_max:
            raise Overloaded(f"The gateway is answering {self.in_flight} requests, its limit. Try again shortly.")
        self.in_flight += 1

    def leave(self) -> None:
        self.in_flight -= 1


async def place_hold(books: Books, caller: Caller, call: Call, offer: Offer) -> Hold | None:
    """The most this call may cost, put aside; None where nothing is charged. Raises InsufficientCredit."""
    if offer.price is None:
        return None
    request = call.request
    # Every token of the prompt stands for at least a byte of the body, whatever tokenizer reads it.
    prompt_tokens = tokens_max([call.raw.decode("utf-8", "replace")]) + _allowance_tokens(call)
    output_tokens = request.tokens_limit or offer.price.max_output_tokens or _OUTPUT_TOKENS
    amount_nano = holds.size(offer.price.price_for(prompt_tokens), prompt_tokens, output_tokens, request.n or 1)
    if not amount_nano:
        return None
    return await books.hold(call.id, caller.user_id, amount_nano, HOLD_LASTS_S)


def _allowance_tokens(call: Call) -> int:
    """What a provider adds: its chat format around each message, pictures and sounds that a URL names."""
    if not isinstance(call.request, ChatRequest):
        return _FORMAT_TOKENS
    messages = call.request.messages
    parts = sum(len(message.content) for message in messages if isinstance(message.content, list))
    return _FORMAT_TOKENS * len(messages) + _MEDIA_TOKENS * parts
