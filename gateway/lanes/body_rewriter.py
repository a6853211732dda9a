"""Rewrites a caller's body for a backend: replaces single fields and keeps every other byte."""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from gateway.dialects.openai import GENERATES, with_model
from gateway.lanes.base import Call, Offer
from runtime.errors import RequestInvalid

# Fields for this gateway only; some servers refuse fields that they do not know.
OWN_FIELDS = ("millrace", "provider")
_ASKING_USAGE = b'{"stream_options":{"include_usage":true},'

_top_level = msgspec.json.Decoder(dict[str, msgspec.Raw])


def for_backend(call: Call, served_as: str | None, *, salt: str | None = None) -> bytes:
    """Return the body with the backend's name of the model. Streams request usage. Raises RequestInvalid.

    Requests with another `salt` cannot use the prompt cache of this one.
    """
    request, raw = call.request, call.raw
    if call.content_type != "application/json":
        return with_model(raw, served_as) if served_as is not None and served_as != request.model else raw
    asks_usage = request.stream and call.kind in GENERATES and not call.generation.wants_usage
    is_renamed = served_as is not None and served_as != request.model
    if not is_renamed and salt is None and request.millrace is None and request.provider is None:
        if not asks_usage:
            return raw
        start = raw.find(b"{") + 1
        if b'"stream_options"' not in raw and start:
            return _ASKING_USAGE + raw[start:]
    changes: dict[str, Any] = {}
    if asks_usage:
        changes["stream_options"] = {"include_usage": True}
    if is_renamed:
        changes["model"] = served_as
    if salt is not None:
        changes["cache_salt"] = salt
    return with_fields(call, changes, without=OWN_FIELDS)


def for_replica(call: Call, offer: Offer) -> bytes:
    """Return the body for another Millrace: it requests the stream's tokens, and has the tokens to continue after.

    The seed is stated, so that a gateway that continues samples the same tokens. Raises RequestInvalid.
    """
    request, extras = call.generation, call.generation.millrace
    extras_for_replica: dict[str, Any] = {"resumable": True, "weights": offer.weights}
    if extras and extras.resume:
        extras_for_replica["resume"] = extras.resume
    changes: dict[str, Any] = {"millrace": extras_for_replica}
    if request.seed is not None:
        changes["seed"] = request.seed
    if not request.wants_usage:
        changes["stream_options"] = {"include_usage": True}
    if offer.served_as is not None:
        changes["model"] = offer.served_as
    return with_fields(call, changes, without=OWN_FIELDS)


def with_fields(call: Call, changes: Mapping[str, Any], *, without: Iterable[str] = ()) -> bytes:
    """Return the body with top-level fields replaced or removed; objects are merged into existing ones.

    Remaining values are copied byte for byte, at any depth. Raises RequestInvalid.
    """
    try:
        fields = _top_level.decode(call.raw)
        for name in without:
            fields.pop(name, None)
        for name, value in changes.items():
            fields[name] = msgspec.Raw(msgspec.json.encode(_merged(fields.get(name), value)))
    except (msgspec.DecodeError, RecursionError) as error:
        raise RequestInvalid(f"The body cannot be passed on: {error}", code="invalid_json") from None
    return msgspec.json.encode(fields)


def _merged(before: msgspec.Raw | None, value: Any) -> Any:
    if before is None or not isinstance(value, dict):
        return value
    return (msgspec.json.decode(before, type=dict[str, Any] | None) or {}) | value
