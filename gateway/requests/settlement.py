"""Finishes a request: releases its slots and holds, reports to routing, and books it."""

from msgspec import structs

from gateway.billing.finished_request import Bearer, Ending
from gateway.errors import EXPECTED, to_api_error
from gateway.lanes.base import Meter
from gateway.requests.context import RequestContext
from gateway.requests.finished import settle_request
from gateway.services import Services
from runtime.hang_ups import HangUps

# Sources of token counts that also know the cached part of the prompt.
_BY_BACKEND = ("upstream", "tokenizer")


def report(context: RequestContext, meter: Meter, ending: Ending) -> None:
    """Report the outcome to routing, if a backend was asked."""
    dispatch = context.dispatch
    if dispatch is None:
        return
    if ending.outcome == "complete":
        dispatch.succeeded(meter.completion_tokens, meter.cached_tokens if meter.source in _BY_BACKEND else None)
    elif ending.outcome == "failed" and ending.status == 200:
        dispatch.failed()
    else:
        dispatch.left()


def settle(services: Services, context: RequestContext, meter: Meter, ending: Ending) -> None:
    """Release the request's slots and holds, and record its result."""
    if context.has_place:
        services.admission.leave()
    if context.turn is not None:
        services.turns.leave(context.turn)
        context.turn = None
    ending = structs.replace(ending, prompt=_bearer(services.limits.hang_ups, context, meter, ending))
    if ending.prompt != "none" and not meter.prompt_tokens:
        meter.prompt_tokens = context.call.prompt_tokens
        meter.source = "characters"
    spent_nano = settle_request(services.bookkeeper, context, meter, ending)
    if context.ticket:
        # A cached answer needed no backend: it counts as a request without tokens.
        tokens = 0 if context.found else meter.prompt_tokens + meter.completion_tokens
        is_served = ending.outcome != "refused" and context.first_byte_s is not None
        context.ticket.leave(tokens, spent_nano, is_served=is_served or ending.prompt != "none")


def _bearer(hang_ups: HangUps, context: RequestContext, meter: Meter, ending: Ending) -> Bearer:
    """Return the bearer of a prompt's cost if no text was delivered.

    Once the provider has begun, the caller bears it. Before that this gateway does, or the seller, for as many
    requests as a payer may leave unpaid. A failed backend is paid nothing. The buyer states what sellers are owed.
    """
    offer = context.offer
    if (
        offer is None
        or offer.price is None
        or context.hold is None
        or not context.has_asked
        or meter.completion_tokens
    ):
        return "none"
    is_bought = offer.lane == "market"
    if context.first_byte_s is not None:
        return "none" if is_bought or ending.outcome == "failed" else "caller"
    if ending.outcome == "interrupted" and not context.is_left:  # this gateway is stopping
        return "none" if is_bought else "gateway"
    is_unpaid = hang_ups.take(context.caller.user_id)
    if is_bought:
        return "seller"
    return "gateway" if is_unpaid else "caller"


def refusal(error: BaseException) -> Ending:
    """The ending of a request without an answer. As in nginx, 499 means that the caller disconnected."""
    if not isinstance(error, Exception):
        return Ending(499, "interrupted")
    status = to_api_error(error).status
    problem = str(error) if isinstance(error, EXPECTED) else type(error).__name__
    return Ending(status, "refused" if status < 500 else "failed", problem)
