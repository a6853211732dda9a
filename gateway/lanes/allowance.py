"""How much of an answer is reserved in advance: all of it, or growing amounts while it streams. Pure."""

from dataclasses import dataclass

from accounting.metering.prices import PricedModel
from accounting.money import TOKENS_PER_PRICE, Nano, Price
from accounting.spending import holds
from gateway.dialects.openai import ChatRequest, GenerationRequest, TaskRequest
from gateway.lanes.base import Call, Offer
from gateway.lanes.token_bounds import choices_of, output_bound, prompt_tokens_max
from gateway.lanes.transcript import CHOICES_MAX
from runtime.errors import RequestInvalid

FIRST_TOKENS = 512
"""The first reservation of a stream of unknown length, in tokens of each choice."""
STEP_TOKENS_MAX = 4096
USEFUL_TOKENS = 16
"""The minimum number of tokens for which an answer begins or continues."""

# Claude thinks only on request, which `_works_unseen` checks itself.
_THINKS_WHEN_TOLD = ("anthropic",)


@dataclass(frozen=True, slots=True)
class Allowance:
    """A call's cost at an offer by the number of tokens of its answer. All token counts are per choice.

    The upstream enforces `tokens_max`. `grows`: less than that may be reserved, because usage can be seen while
    the answer streams. `is_open`: the request states no length, so its first reservation is smaller.
    """

    price: Price
    prompt_tokens: int
    tokens_max: int
    choices: int = 1
    grows: bool = False
    is_open: bool = False

    @property
    def first_tokens(self) -> int:
        return min(FIRST_TOKENS, self.tokens_max) if self.grows and self.is_open else self.tokens_max

    def next_tokens(self, tokens: int) -> int:
        """The next amount to request when `tokens` is not enough: twice as many, later one step more."""
        step_tokens = max(FIRST_TOKENS, min(tokens, STEP_TOKENS_MAX))
        return min(self.tokens_max, tokens + step_tokens)

    def less_tokens(self, tokens: int, affordable_nano: int | None) -> int:
        """The tokens an answer begins with if `tokens` is refused; 0 if no useful number is left.

        `affordable_nano` is None if the amount that would be accepted is unknown.
        """
        less = tokens // 2 if affordable_nano is None else self.tokens_within(affordable_nano)
        less = min(less, FIRST_TOKENS, tokens - 1)
        return less if self.grows and less >= min(USEFUL_TOKENS, self.tokens_max) else 0

    def amount_nano(self, tokens: int) -> Nano:
        """Return the maximum cost of an answer of this length.

        Raises AmountInvalid for more than any request may reserve.
        """
        return holds.size(self.price, self.prompt_tokens, tokens, self.choices)

    def tokens_within(self, amount_nano: int) -> int:
        """Return the longest answer that the amount pays for in the most expensive case."""
        token_nano = self.price.dearest_completion_nano * self.choices
        left = amount_nano * TOKENS_PER_PRICE - self.prompt_tokens * _prompt_nano(self.price)
        if left < 0:
            return 0
        return min(self.tokens_max, left // token_nano) if token_nano else self.tokens_max


def allowance_of(call: Call, offer: Offer) -> Allowance | None:
    """Return the call's costs at an offer, None if it is free.

    Raises RequestInvalid for more choices than the gateway can count.
    """
    request = call.request
    if offer.price is None or isinstance(request, TaskRequest):  # No priced offer takes these.
        return None
    if choices_of(request) > CHOICES_MAX:
        field = "n" if isinstance(request, ChatRequest) else "prompt"
        text = f"{field}: a paid request has at most {CHOICES_MAX} choices in all; request fewer, or split the request"
        raise RequestInvalid(text, param=field, code="too_many_choices")
    prompt_tokens = prompt_tokens_max(call)
    return Allowance(
        offer.price.price_for(prompt_tokens),
        prompt_tokens,
        output_bound(request, offer),
        choices_of(request),
        grows=request.is_stream and not _works_unseen(request, offer.price),
        is_open=request.tokens_limit is None,
    )


def _works_unseen(request: GenerationRequest, price: PricedModel) -> bool:
    """Whether the bill may far exceed the visible text. If so, reserve the maximum or do not ask this offer."""
    if not isinstance(request, ChatRequest):
        return (request.best_of or 1) > (request.n or 1)
    if (request.reasoning_effort or "none") != "none":
        return True
    return request.thinking is not None or (price.reasons and price.provider not in _THINKS_WHEN_TOLD)


def _prompt_nano(price: Price) -> int:
    return max(price.prompt_nano, price.cached_nano)
