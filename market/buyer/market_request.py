"""The part of a request that a seller may see: what shapes the answer, nothing about the caller."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import msgspec

from accounting.money import TOKENS_PER_PRICE
from market.protocol.channels.job import JobBody, pack_job_body
from market.protocol.listings.prices import Prices, cost_nano
from runtime.workers.errors import Refusal

Json = dict[str, Any]
Kind = Literal["chat", "completion"]

_SAMPLING = frozenset(
    (
        "max_tokens",
        "max_completion_tokens",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "n",
        "stop",
        "seed",
        "presence_penalty",
        "frequency_penalty",
        "repetition_penalty",
        "logit_bias",
        "logprobs",
    )
)
_CHAT = _SAMPLING | {
    "messages",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "functions",
    "function_call",
    "response_format",
    "reasoning_effort",
    "top_logprobs",
}
_FIELDS: dict[Kind, frozenset[str]] = {"chat": _CHAT, "completion": _SAMPLING | {"prompt"}}
_MESSAGE = frozenset(
    ("role", "content", "name", "tool_calls", "tool_call_id", "function_call", "refusal", "reasoning_content")
)
_PART = frozenset(("type", "text", "refusal"))
# With these, another seller cannot continue a partial answer.
_WHOLE_ONLY = ("tools", "functions", "response_format")
_CHOICES_MAX = 16
# Some engines also report the end-of-text token.
_EXTRA_TOKENS_MAX = 8


@dataclass(frozen=True)
class MarketRequest:
    """A checked request of the gateway, reduced to what sellers may see. `model` is the caller's name for it."""

    kind: Kind
    model: str
    fields: Json
    is_stream: bool
    wants_usage: bool

    @property
    def choices(self) -> int:
        return int(self.fields.get("n") or 1)

    @property
    def tokens_max(self) -> int:
        """Return the token limit of each choice; the gateway always sets one."""
        return int(self.fields.get("max_completion_tokens") or self.fields["max_tokens"])

    @cached_property
    def tools(self) -> frozenset[str]:
        """Return the names of the functions that the answer may call."""
        described = [
            *(tool.get("function") for tool in self.fields.get("tools") or ()),
            *(self.fields.get("functions") or ()),
        ]
        return frozenset(each["name"] for each in described if isinstance(each, dict) and "name" in each)

    @property
    def logprob_tokens_max(self) -> int:
        """Return for how many tokens the caller wants log probabilities.

        A few tokens that engines report without ending a choice are added.
        """
        logprobs = self.fields.get("logprobs")
        has_logprobs = bool(logprobs) if self.kind == "chat" else logprobs is not None
        return (self.tokens_max + _EXTRA_TOKENS_MAX) * self.choices if has_logprobs else 0

    @property
    def can_be_continued(self) -> bool:
        """Return whether another seller may continue from a partial answer's text."""
        has_one_text = self.kind == "chat" or isinstance(self.fields["prompt"], str)
        is_whole_only = bool(self.logprob_tokens_max) or any(self.fields.get(name) for name in _WHOLE_ONLY)
        return has_one_text and self.choices == 1 and not is_whole_only

    def after(self, text: str, tokens: int) -> "MarketRequest":
        """Return the request for the part that follows `text`, which has `tokens` tokens."""
        fields = dict(self.fields)
        if self.kind == "chat":
            fields["messages"] = [*fields["messages"], {"role": "assistant", "content": text}]
        else:
            fields["prompt"] = fields["prompt"] + text
        rest = MarketRequest(self.kind, self.model, fields, self.is_stream, self.wants_usage)
        return rest.limited(max(1, self.tokens_max - tokens))

    def limited(self, tokens: int) -> "MarketRequest":
        """Return the same request with at most `tokens` tokens."""
        limit = "max_completion_tokens" if self.fields.get("max_completion_tokens") else "max_tokens"
        return MarketRequest(
            self.kind, self.model, {**self.fields, limit: tokens}, self.is_stream, self.wants_usage
        )

    def affordable(self, prices: Prices, prompt_tokens: int, left_nano: int) -> "MarketRequest":
        """Return the same request, shortened to what `left_nano` pays for including the prompt; for one choice."""
        tokens = self.tokens_max
        if prices.completion:
            beyond_nano = left_nano - cost_nano(prices, prompt_tokens, 0, 1)
            tokens = min(tokens, 1 + max(0, beyond_nano) * TOKENS_PER_PRICE // int(prices.completion))
        # Rounding up may allow one token too many.
        while tokens > 1 and cost_nano(prices, prompt_tokens, 0, tokens) > left_nano:
            tokens -= 1
        return self.limited(tokens)

    def packed(self, model: str) -> bytes:
        """Return the packed request to seal, with the listing's model name."""
        return pack_job_body(JobBody(self.kind, {"model": model, "stream": True, **self.fields}))


def read_market_request(body: bytes, kind: Kind) -> MarketRequest:
    """Read a request of the gateway, which has already checked the types.

    Raises:
        Refusal: the request cannot be bought as it is.
    """
    try:
        given = msgspec.json.decode(body, type=Json)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise Refusal(400, "invalid_json", "The body is not valid JSON.") from None
    fields = {name: value for name, value in given.items() if name in _FIELDS[kind] and value is not None}
    _check(fields, kind)
    if kind == "chat":
        fields["messages"] = [_message(message) for message in fields["messages"]]
    options = given.get("stream_options") or {}
    return MarketRequest(
        kind, given["model"], fields, bool(given.get("stream")), bool(options.get("include_usage"))
    )


def _check(fields: Json, kind: Kind) -> None:
    texts = "messages" if kind == "chat" else "prompt"
    if not isinstance(fields.get(texts), list | str) or not isinstance(
        fields.get("max_completion_tokens") or fields.get("max_tokens"), int
    ):
        raise Refusal(400, "invalid_value", f"A market request needs {texts} and a token limit.")
    if int(fields.get("n") or 1) > _CHOICES_MAX:
        raise Refusal(400, "invalid_value", f"n is too large for the market. Use at most {_CHOICES_MAX}.", "n")


def _message(message: Json) -> Json:
    kept = {name: value for name, value in message.items() if name in _MESSAGE and value is not None}
    if isinstance(content := kept.get("content"), list):
        kept["content"] = [{name: part[name] for name in part if name in _PART} for part in content]
    return kept
