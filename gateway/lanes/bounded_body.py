"""The caller's body for a paid backend: limited to the reserved amount, and with a request for usage."""

from collections.abc import Iterable
from typing import Any

from gateway.dialects.openai import ChatRequest
from gateway.lanes.base import Call, Offer
from gateway.lanes.body_rewriter import OWN_FIELDS, with_fields
from gateway.lanes.token_bounds import output_bound

_LIMITS = ("max_tokens", "max_completion_tokens")


def paid_body(call: Call, offer: Offer, without: Iterable[str] = ()) -> bytes:
    """Return the caller's bytes without Millrace's fields, and with the limits that the hold assumes.

    A stream is asked for its usage, which is charged, and the answer is limited to the reserved amount.
    `without` are further fields that must not be passed on. Remaining values are passed on unchanged, however
    deep they are. Raises RequestInvalid.
    """
    request = call.generation
    changes: dict[str, Any] = {}
    if request.is_stream and not request.wants_usage:
        changes["stream_options"] = {"include_usage": True}
    if offer.served_as is not None and offer.served_as != request.model:
        changes["model"] = offer.served_as  # a fallback of the model that was asked for
    limit = "max_completion_tokens" if _says_completion_tokens(call) else "max_tokens"
    changes[limit] = output_bound(request, offer)
    return with_fields(call, changes, without=(*OWN_FIELDS, *_LIMITS, *without))


def _says_completion_tokens(call: Call) -> bool:
    """Whether the caller names the limit `max_completion_tokens`: providers know one name or the other.

    That name is kept; litellm translates the one added here.
    """
    return isinstance(call.request, ChatRequest) and call.request.max_completion_tokens is not None
