"""A caller's body as somebody gets it who is paid for it: bounded by what was put aside, and asked for a count."""

from collections.abc import Iterable
from typing import Any

from gateway.lanes.base import Call, Offer
from gateway.lanes.body_rewriter import OURS, with_fields
from gateway.lanes.token_bounds import output_bound
from gateway.openai import ChatRequest

_LIMITS = ("max_tokens", "max_completion_tokens")


def paid_body(call: Call, offer: Offer, without: Iterable[str] = ()) -> bytes:
    """The caller's bytes without our extras, and with what the hold rests on said aloud.

    A stream is asked for its usage, which is what gets charged, and the answer is bounded by what was put aside
    for it. `without` are further fields that are nobody else's. Values that stay are passed on as they stand,
    however deep they are. Raises RequestInvalid.
    """
    request = call.generation
    changes: dict[str, Any] = {}
    if request.is_stream and not request.wants_usage:
        changes["stream_options"] = {"include_usage": True}
    if offer.served_as is not None and offer.served_as != request.model:
        changes["model"] = offer.served_as  # a fallback of the model that was asked for
    limit = "max_completion_tokens" if _says_completion_tokens(call) else "max_tokens"
    changes[limit] = output_bound(request, offer)
    return with_fields(call, changes, without=(*OURS, *_LIMITS, *without))


def _says_completion_tokens(call: Call) -> bool:
    """Providers know the limit by one name or the other: it stays under the caller's; litellm translates ours."""
    return isinstance(call.request, ChatRequest) and call.request.max_completion_tokens is not None
