"""What a fake provider can be asked to do, named by the end of the model name: `fake.aborts` hangs up.

A behaviour travels in the model name because that is the one field every client passes on, so that concurrent
requests to one server can each have a fault of their own, without any shared switch.
"""

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Refusal:
    """An error answer before the first byte; `kind` and `code` are written as the real provider would."""

    status: int
    message: str
    kind: str
    code: str | None = None
    retry_after_s: int | None = None


@dataclass(frozen=True)
class Behaviour:
    """How one request is answered; the default is a provider on a good day."""

    refusal: Refusal | None = None
    words: tuple[str, ...] = ("The ", "mill ", "wheel ", "turns ", "all ", "night.")
    first_byte_delay_s: float = 0.0
    chunk_delay_s: float = 0.0
    abort_after_chunks: int | None = None
    """The connection is reset after so many pieces of text."""
    end_after_chunks: int | None = None
    """The body ends properly, but before the answer does."""
    stall_after_chunks: int | None = None
    """Nothing more is sent, and the connection stays open."""
    error_after_chunks: int | None = None
    """An error event takes the place of the rest."""
    garbage: bool = False
    sends_usage: bool = True
    counts_ahead: bool = False
    """A usage stands in the first event of a stream, and says one token."""
    calls_tool: bool = False
    declines: bool = False
    """The model refuses to answer, in the field that OpenAI has for it."""


GOOD = Behaviour()

_COMMON = {
    "slow-first-byte": replace(GOOD, first_byte_delay_s=30.0),
    "slow-chunks": replace(GOOD, words=("tick ",) * 400, chunk_delay_s=0.05),
    "few-chunks": replace(GOOD, words=("tick ",) * 10, chunk_delay_s=0.03),
    "many-chunks": replace(GOOD, words=("tick ",) * 400),
    "stalls": replace(GOOD, stall_after_chunks=3),
    "aborts": replace(GOOD, abort_after_chunks=3),
    "truncates": replace(GOOD, end_after_chunks=3),
    "fails-midway": replace(GOOD, error_after_chunks=3),
    "garbage": replace(GOOD, garbage=True),
    "tool": replace(GOOD, calls_tool=True),
    "late": replace(GOOD, first_byte_delay_s=0.6),
}

_TOO_LONG = "This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens."
_FILTERED = "Your request was rejected as a result of our safety system."
_INVALID = "invalid_request_error"

_OPENAI_REFUSALS = {
    "bad-request": Refusal(400, "Invalid value for 'temperature'.", _INVALID, "invalid_value"),
    "bad-key": Refusal(401, "Incorrect API key provided.", _INVALID, "invalid_api_key"),
    "forbidden": Refusal(403, "Country not supported.", "request_forbidden", "unsupported_country"),
    "missing": Refusal(404, "The model does not exist.", _INVALID, "model_not_found"),
    "too-long": Refusal(400, _TOO_LONG, _INVALID, "context_length_exceeded"),
    "filtered": Refusal(400, _FILTERED, _INVALID, "content_policy_violation"),
    "rate-limited": Refusal(429, "Rate limit reached.", "requests", "rate_limit_exceeded", retry_after_s=7),
    "broke": Refusal(429, "You exceeded your quota.", "insufficient_quota", "insufficient_quota"),
    "crashes": Refusal(500, "The server had an error.", "server_error"),
    "overloaded": Refusal(503, "Overloaded.", "server_error", retry_after_s=3),
}

_ANTHROPIC_REFUSALS = {
    "bad-request": Refusal(400, "temperature: range: 0..1", _INVALID),
    "bad-key": Refusal(401, "invalid x-api-key", "authentication_error"),
    "forbidden": Refusal(403, "not allowed for your key", "permission_error"),
    "missing": Refusal(404, "model: fake.missing", "not_found_error"),
    "too-long": Refusal(400, "prompt is too long: 9000 tokens > 8192 maximum", _INVALID),
    "rate-limited": Refusal(429, "Your requests exceed your limit.", "rate_limit_error", retry_after_s=7),
    "crashes": Refusal(500, "Internal server error", "api_error"),
    "overloaded": Refusal(529, "Overloaded", "overloaded_error"),
}

OPENAI = _COMMON | {
    "no-usage": replace(GOOD, sends_usage=False),
    # A role, six words and the finish reason come before the usage.
    "ends-uncounted": replace(GOOD, end_after_chunks=8),
    "aborts-uncounted": replace(GOOD, abort_after_chunks=8),
    "counts-ahead": replace(GOOD, counts_ahead=True, sends_usage=False),
    "declines": replace(GOOD, declines=True),
}
OPENAI |= {name: replace(GOOD, refusal=refusal) for name, refusal in _OPENAI_REFUSALS.items()}
ANTHROPIC = _COMMON | {name: replace(GOOD, refusal=refusal) for name, refusal in _ANTHROPIC_REFUSALS.items()}


def behaviour_of(model: str, table: dict[str, Behaviour]) -> Behaviour:
    """The behaviour after the dot of the model name; a name without a dot is good, an unknown one a mistake."""
    _, dot, name = model.partition(".")
    return table[name] if dot else GOOD
