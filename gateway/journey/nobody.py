"""Why nobody can answer a request: the error that fits an empty ranking, in the words of its rejections."""

from gateway.errors import (
    FeatureUnsupported,
    GatewayError,
    ModelUnknown,
    Overloaded,
    PolicyForbids,
    RequestInvalid,
)
from gateway.lanes.base import Call
from gateway.openai import ChatRequest, CompletionRequest
from gateway.routing.decision import Decision, Rejection
from gateway.routing.policy import Check

# What passes by itself. Whatever else stands against an offer stays until the request is another one.
_PASSING: frozenset[Check] = frozenset(("down", "draining", "breaker"))
# The further down the list, the nearer an offer was to serving the request.
_NEARNESS: tuple[Check, ...] = ("lane", "kind", "features", "context", "provider", "price")


def why_nobody(call: Call, decision: Decision, wait_s: int = 0) -> GatewayError:
    """`wait_s`: after so long one of the backends may take requests again, where that is known."""
    model, rejections = call.request.model, decision.rejections
    if not rejections:
        message = f"The model '{model}' does not exist here. GET /v1/models lists what does."
        return ModelUnknown(message, param="model")
    for rejection in rejections:
        if rejection.rule:
            message = f"'{model}' cannot be served by a lane that this key may use: {decision.reason}."
            return PolicyForbids(
                _with_remedy(message, rejection), param="model", code=f"policy_{rejection.rule.name}"
            )
    lasting = [rejection for rejection in rejections if rejection.objection.check in _NEARNESS]
    if len(lasting) == len(rejections) or all(r.objection.check == "lane" for r in rejections):
        return _for_good(call, decision, max(lasting, key=lambda r: _NEARNESS.index(r.objection.check)))
    error = Overloaded(f"'{model}' cannot be served just now: {decision.reason}.")
    error.retry_after_s = max(1, wait_s)
    return error


def _for_good(call: Call, decision: Decision, nearest: Rejection) -> GatewayError:
    """The request as it is will never be answered here: what of it is to blame."""
    message = _with_remedy(f"'{call.request.model}' cannot do this here: {decision.reason}.", nearest)
    match nearest.objection.check:
        case "features":
            return FeatureUnsupported(
                message, param=call.features[min(call.features.keys() - nearest.offer.features)]
            )
        case "context":
            return RequestInvalid(message, param=_prompt_field(call), code="context_length_exceeded")
        case "provider" | "price":
            return RequestInvalid(message, param="provider", code="no_such_provider")
        case "lane":
            return RequestInvalid(message, param="millrace.lane", code="not_in_lane")
        case _:
            return FeatureUnsupported(message, param="model")


def _with_remedy(message: str, rejection: Rejection) -> str:
    return f"{message} What helps: {rejection.objection.remedy}."


def _prompt_field(call: Call) -> str:
    if isinstance(call.request, ChatRequest):
        return "messages"
    return "prompt" if isinstance(call.request, CompletionRequest) else "input"
