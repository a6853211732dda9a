"""The error for a request without candidates: it fits the empty ranking and quotes its rejections."""

from gateway.dialects.openai import ChatRequest, CompletionRequest
from gateway.errors import FeatureUnsupported, LaneBusy, LaneLimited, ModelUnknown, PolicyForbids
from gateway.lanes.base import Call
from gateway.requests.queue_slot import Pause
from gateway.routing.decision import Decision, Rejection
from gateway.routing.policy import Check, lack_of
from runtime.errors import Overloaded, RequestInvalid, ServiceError

# Objections that only another request removes. The later in the list, the closer an offer was to serving it.
_NEARNESS: tuple[Check, ...] = ("lane", "kind", "features", "context", "provider", "price")


def no_backend_error(call: Call, decision: Decision, pause: Pause | None = None) -> ServiceError:
    """Return the error. `pause` is the first to end of the pauses that backends asked for."""
    model, rejections = call.request.model, decision.rejections
    if not rejections:
        message = f"Model '{model}' not found. List models with GET /v1/models."
        return ModelUnknown(message, param="model")
    if pause:
        # This is the only objection that passes by itself.
        kind = LaneLimited if pause.is_limit else LaneBusy
        return kind(_not_now(model, decision), retry_after_s=pause.retry_after_s)
    # Ignore offers that the request itself excludes, unless there are no others.
    considered = [r for r in rejections if r.objection.check != "lane"] or list(rejections)
    able, lacking = _by_ability(call, considered)
    if not able:
        # No other key would help.
        return _unsupported(call, lacking)
    for rejection in able:
        if rejection.rule:
            message = f"'{model}' cannot be served by a lane that this key may use: {decision.reason}."
            return PolicyForbids(
                _with_remedy(message, rejection), param="model", code=f"policy_{rejection.rule.name}"
            )
    if all(rejection.objection.check in _NEARNESS for rejection in considered):
        return _for_good(call, decision, max(able, key=_nearness))
    return Overloaded(_not_now(model, decision))


def _not_now(model: str, decision: Decision) -> str:
    return f"'{model}' cannot be served now: {decision.reason}."


def _by_ability(call: Call, rejections: list[Rejection]) -> tuple[list[Rejection], list[Rejection]]:
    """Return rejections of able offers, and the others, each with what its offer lacks."""
    able: list[Rejection] = []
    lacking: list[Rejection] = []
    for rejection in rejections:
        if lack := lack_of(rejection.offer, call.kind, call.features.keys()):
            lacking.append(Rejection(rejection.offer, lack))
        else:
            able.append(rejection)
    return able, lacking


def _unsupported(call: Call, lacking: list[Rejection]) -> FeatureUnsupported:
    """`lacking` says what each offer lacks."""
    nearest = max(lacking, key=_nearness)
    reason = Decision((), tuple(lacking)).reason
    missing = call.features.keys() - nearest.offer.features if nearest.objection.check == "features" else ()
    message = _with_remedy(f"'{call.request.model}' cannot answer this request: {reason}.", nearest)
    return FeatureUnsupported(message, param=call.features[min(missing)] if missing else "model")


def _for_good(call: Call, decision: Decision, nearest: Rejection) -> ServiceError:
    """Return the error for a request that this gateway can never answer; it names the field that causes it."""
    message = _with_remedy(f"'{call.request.model}' cannot answer this request: {decision.reason}.", nearest)
    match nearest.objection.check:
        case "context":
            return RequestInvalid(message, param=_prompt_field(call), code="context_length_exceeded")
        case "provider" | "price":
            return RequestInvalid(message, param="provider", code="no_such_provider")
        case _:
            return RequestInvalid(message, param="millrace.lane", code="not_in_lane")


def _nearness(rejection: Rejection) -> int:
    return _NEARNESS.index(rejection.objection.check)


def _with_remedy(message: str, rejection: Rejection) -> str:
    return f"{message} To fix this: {rejection.objection.remedy}."


def _prompt_field(call: Call) -> str:
    if isinstance(call.request, ChatRequest):
        return "messages"
    return "prompt" if isinstance(call.request, CompletionRequest) else "input"
