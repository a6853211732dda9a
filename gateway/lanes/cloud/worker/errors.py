"""The conversion of litellm's exceptions to `Refusal`.

The exceptions are distinguished by their class names, so this module does not import litellm.
"""

import re
import traceback
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import orjson

from runtime.workers.errors import MESSAGE_CHARS_MAX, Refusal

CHAIN_LENGTH_MAX = 10


_BY_CLASS = {
    "ContextWindowExceededError": (400, "context_length_exceeded"),
    "ContentPolicyViolationError": (400, "content_filter"),
    "UnsupportedParamsError": (400, "unsupported_parameter"),
    "ImageFetchError": (400, "image_url_not_fetched"),
    "ConnectTimeout": (502, "provider_unreachable"),
    "APITimeoutError": (504, "provider_timeout"),
    "TimeoutException": (504, "provider_timeout"),
    "TimeoutError": (504, "provider_timeout"),
    "ConnectError": (502, "provider_unreachable"),
    "BrokenOff": (502, "provider_broke_off"),
    "ReadError": (502, "provider_broke_off"),
    "RemoteProtocolError": (502, "provider_broke_off"),
    "JSONDecodeError": (502, "provider_garbled"),
    "AnswerTooLarge": (502, "provider_too_large"),
    "AnswerCompressed": (502, "provider_compressed"),
}
"""Meanings that the status does not show; the first match in the chain of causes applies."""

_BY_STATUS = {
    401: (502, "provider_auth_failed"),
    402: (502, "provider_quota_exhausted"),
    403: (502, "provider_auth_failed"),
    404: (502, "provider_model_missing"),
    408: (504, "provider_timeout"),
    429: (429, "provider_rate_limited"),
    503: (503, "provider_overloaded"),
    504: (504, "provider_timeout"),
    529: (503, "provider_overloaded"),
}
OVERLOADED_RETRY_AFTER = "5"

_OWN_WORDS = {
    "provider_auth_failed": "{provider} does not accept the key that this gateway sends (HTTP {status}).",
    "provider_unreachable": "{provider} cannot be reached.",
    "provider_timeout": "{provider} did not answer in time.",
    "provider_broke_off": "The answer of {provider} was interrupted.",
    "provider_garbled": "{provider} sent something that is not an answer of its API.",
    "provider_too_large": "{provider} sent an answer that is too large.",
    "provider_compressed": "{provider} sent a compressed answer, although it was asked not to.",
}
"""Messages of this gateway only: the provider's may repeat a part of the key, and litellm's the address."""

_WORDLESS = {
    "context_length_exceeded": "The request is too long for {provider}.",
    "content_filter": "{provider} declines the request for its content.",
    "image_url_not_fetched": "Images are not fetched for {provider}; send them inside the request.",
    "provider_overloaded": "{provider} is overloaded.",
    "provider_rate_limited": "{provider} has reached its rate limit.",
    "request_not_translated": "The request cannot be converted for {provider}: a field has an unsupported value.",
}
"""Messages for errors without a provider's message: litellm's and Python's may repeat the prompt or the code."""

_TRANSLATING = re.compile(
    r"transform_request|map_openai_params|get_optional_params|validate_chat_\w+|\w+_messages_pt"
)
"""litellm's functions that run before anything of a request is sent."""


def from_litellm(error: BaseException, provider: str, secrets: list[str]) -> Refusal:
    """Return the refusal for an exception of litellm."""
    chain = _chain(error)
    answered = any(_is_answer(link) for link in chain)
    provider_error = _said_by_provider(chain, answered)
    status, code = _classify(chain, provider_error, answered)
    retry_after = _retry_after(chain) or (OVERLOADED_RETRY_AFTER if code == "provider_overloaded" else None)
    if own := _OWN_WORDS.get(code):
        message = own.format(provider=provider, status=_status(chain) or "none")
        return Refusal(status, code, message, retry_after=retry_after)
    if code == "unsupported_parameter":
        names = re.findall(r"'(\w+)'", str(error).partition("[")[2].partition("]")[0])
        message = f"{provider} does not support {', '.join(names)}."
        return Refusal(status, code, message, names[0] if names else None)
    if provider_error is None:
        general = "{provider} rejects the request." if status < 500 else "{provider} gave no answer."
        message = _WORDLESS.get(code, general).format(provider=provider)
        return Refusal(status, code, message, retry_after=retry_after)
    message = f"{provider}: {_redact(provider_error.message, secrets)}"
    if status == HTTPStatus.BAD_REQUEST:
        code = provider_error.code if provider_error.code and code == "provider_rejected_request" else code
        return Refusal(status, code, message, provider_error.param)
    return Refusal(status, code, message, retry_after=retry_after)


@dataclass(frozen=True)
class _Said:
    """The provider's own error body, as far as litellm kept it."""

    message: str
    code: str | None = None
    param: str | None = None


def _classify(chain: list[BaseException], provider_error: _Said | None, answered: bool) -> tuple[int, str]:
    known = _known_class(chain)
    if known and (known[0] < 500 or answered):
        return known
    if not answered and _was_translating(chain):
        return 400, "request_not_translated"
    if known:
        return known
    if not answered and any(type(link).__module__ == "builtins" for link in chain):
        return 502, "provider_garbled"  # litellm or this module could not read the answer
    if provider_error and provider_error.code == "insufficient_quota":
        return _BY_STATUS[402]
    status = _status(chain)
    if status in _BY_STATUS:
        return _BY_STATUS[status]
    if status is not None and 400 <= status < 500:
        return 400, "provider_rejected_request"
    return 502, "provider_failed"


def _known_class(chain: list[BaseException]) -> tuple[int, str] | None:
    for link in chain:
        for base in type(link).__mro__:
            if base.__name__ in _BY_CLASS:
                return _BY_CLASS[base.__name__]
    return None


def _is_answer(link: BaseException) -> bool:
    """Return whether an error is an HTTP answer of the provider; litellm's own classes only resemble one."""
    if type(link).__module__ == "litellm.exceptions":
        return False
    return any(base.__name__ in ("HTTPStatusError", "APIStatusError") for base in type(link).__mro__)


def _was_translating(chain: list[BaseException]) -> bool:
    """Return whether litellm failed to convert the request, before anything was sent."""
    frames = (frame for link in chain for frame, _ in traceback.walk_tb(link.__traceback__))
    return any(_TRANSLATING.search(frame.f_code.co_name) for frame in frames)


def _chain(error: BaseException) -> list[BaseException]:
    """Return the error, then the errors that it wraps, outermost first."""
    chain: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and link not in chain and len(chain) < CHAIN_LENGTH_MAX:
        chain.append(link)
        inner = getattr(link, "original_exception", None)
        link = inner if isinstance(inner, BaseException) else (link.__cause__ or link.__context__)
    return chain


def _status(chain: list[BaseException]) -> int | None:
    statuses = [status for link in chain if isinstance(status := getattr(link, "status_code", None), int)]
    # litellm has no class for an overloaded provider and calls it a fault of the server.
    return 529 if 529 in statuses else statuses[0] if statuses else None


def _said_by_provider(chain: list[BaseException], answered: bool) -> _Said | None:
    """Return the provider's error body, or None if there is none."""
    for link in chain:
        body = getattr(link, "body", None)
        is_read = answered or type(link).__module__.startswith("openai")
        if is_read and isinstance(body, dict) and isinstance(body.get("message"), str):
            return _said(body)
    embedded = _embedded_error(str(chain[0]).partition(" Original exception: ")[0]) if answered else None
    return _said(embedded) if embedded else None


def _said(body: dict[str, Any]) -> _Said:
    code, param = body.get("code"), body.get("param")
    return _Said(
        message=str(body.get("message")),
        code=code if isinstance(code, str) else None,
        param=param if isinstance(param, str) else None,
    )


def _embedded_error(text: str) -> dict[str, Any] | None:
    """Return the error object in a JSON body that litellm left inside its message."""
    start, end = text.find("{"), text.rfind("}")
    if start < 0 or end < start:
        return None
    try:
        body = orjson.loads(text[start : end + 1])
    except orjson.JSONDecodeError:
        return None
    error = body.get("error", body) if isinstance(body, dict) else None
    return error if isinstance(error, dict) and isinstance(error.get("message"), str) else None


def _redact(text: str, secrets: list[str]) -> str:
    for secret in secrets:
        text = text.replace(secret, "[key]")
    text = re.sub(r"://[^/\s@]+@", "://[credentials]@", text)
    return text[:MESSAGE_CHARS_MAX]


def _retry_after(chain: list[BaseException]) -> str | None:
    for link in chain:
        response = getattr(link, "response", None)
        for headers in (getattr(link, "litellm_response_headers", None), getattr(response, "headers", None)):
            value = headers.get("retry-after") if headers else None
            if isinstance(value, str) and re.fullmatch(r"[\x20-\x7e]{1,40}", value):
                return value
    return None
