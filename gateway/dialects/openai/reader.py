"""Parses a body into a request, once, and checks it meanwhile; errors name the field."""

import json
import math
import re
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from gateway.dialects.openai.checks import check_chat, check_completion, check_embedding
from gateway.dialects.openai.fields import HAD_BYTES_MAX, HAD_TOKENS_MAX
from gateway.dialects.openai.generation import ChatRequest, CompletionRequest, GenerationRequest
from gateway.dialects.openai.kinds import Kind
from gateway.dialects.openai.tasks import (
    EmbeddingRequest,
    ImageRequest,
    ModerationRequest,
    RerankRequest,
    SpeechRequest,
    TaskRequest,
)
from runtime.errors import RequestInvalid

Request = GenerationRequest | TaskRequest

T = TypeVar("T")

_PATH = re.compile(r" - at `(?:key in )?\$\.?([^`]*)`\Z")
_MISSING = re.compile(r"missing required field `(\w+)`")

_decoders: dict[Kind, msgspec.json.Decoder[Request]] = {
    "chat": msgspec.json.Decoder(ChatRequest),
    "completion": msgspec.json.Decoder(CompletionRequest),
    "embedding": msgspec.json.Decoder(EmbeddingRequest),
    "rerank": msgspec.json.Decoder(RerankRequest),
    "moderation": msgspec.json.Decoder(ModerationRequest),
    "image": msgspec.json.Decoder(ImageRequest),
    "speech": msgspec.json.Decoder(SpeechRequest),
}
_checks: dict[Kind, Callable[[Any], None]] = {
    "chat": check_chat,
    "completion": check_completion,
    "embedding": check_embedding,
}


def read_request(kind: Kind, body: bytes) -> Request:
    """Parse and check a JSON body. Raises RequestInvalid naming the field."""
    if len(body) > HAD_BYTES_MAX:
        _check_resume(body)
    request = decode(_decoders[kind], body)
    # This is rare, and mostly a tool's field of that name. An escaped letter begins like this. Searching for one
    # byte is a hundred times faster than for several.
    if body.find(b'"model"') != body.rfind(b'"model"') or (b"\\" in body and b"\\u006" in body):
        _check_model(body)
    if check := _checks.get(kind):
        check(request)
    return request


class _Resumed(msgspec.Struct):
    resume: msgspec.Raw = msgspec.Raw(b"")


class _Resuming(msgspec.Struct):
    millrace: _Resumed | None = None


_resuming = msgspec.json.Decoder(_Resuming)


def _check_resume(body: bytes) -> None:
    """Check the size before its tokens become numbers, which take many times the bytes of their text."""
    try:
        found = _resuming.decode(body).millrace
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return  # The full parse reports the error.
    if found and len(bytes(found.resume)) > HAD_BYTES_MAX:
        text = f"millrace.resume: too long; {HAD_TOKENS_MAX} tokens are allowed in all"
        raise RequestInvalid(text, param="millrace.resume", code="invalid_value")


def _check_model(body: bytes) -> None:
    """Refuse a body that names a model twice: backends differ in which one counts.

    The key was checked for one of them.
    """
    try:
        fields = json.loads(body, object_pairs_hook=list)
    except (ValueError, RecursionError):
        raise RequestInvalid("The body is ambiguous JSON. Send each field once.", code="invalid_json") from None
    if [name for name, _ in fields].count("model") > 1:
        raise RequestInvalid("model: given more than once", param="model", code="invalid_value")


def decode(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    """Return the parsed body. Raises RequestInvalid naming the field, or the JSON error."""
    if not body:
        raise RequestInvalid("The request has no body; send a JSON object.", code="invalid_json")
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise refusal(error) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if param := _find_non_finite(body):
            message = f"{param}: NaN and Infinity are not JSON numbers"
            raise RequestInvalid(message, param=param, code="invalid_json") from None
        raise RequestInvalid(f"The body is not valid JSON: {error}", code="invalid_json") from None


def refusal(error: msgspec.ValidationError, under: str = "") -> RequestInvalid:
    """Return the error with its field's name; `under` is the position of the checked value in the request."""
    text = str(error)
    at, missing = _PATH.search(text), _MISSING.search(text)
    places = (under, at.group(1) if at else "", missing.group(1) if missing else "")
    param = ".".join(place for place in places if place).replace(".[", "[")
    problem = _PATH.sub("", text)
    code = "missing_required_parameter" if missing else "invalid_value"
    return RequestInvalid(f"{param}: {problem}" if param else problem, param=param or None, code=code)


def _find_non_finite(body: bytes) -> str | None:
    """Return the top-level field with NaN or Infinity, which Python's json writes but JSON does not have."""
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        return None
    fields = content.items() if isinstance(content, dict) else ()
    return next((name for name, value in fields if isinstance(value, float) and not math.isfinite(value)), None)
