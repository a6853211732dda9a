"""A routing decision as one line of the request log: numbers only, formatted as text when it is read.

Packing costs a twentieth of formatting, and thousands are packed for each one that is read.
"""

from typing import Any

import msgspec

from gateway.lanes.base import Offer
from gateway.routing.decision import Candidate, Decision, Rejection
from gateway.routing.policy import Objection
from gateway.routing.prediction import Prediction
from gateway.routing.rates import Load

# The best candidates and the first rejections explain the choice; later ones add nothing.
_CANDIDATES_MAX = 8
_REJECTIONS_MAX = 16
_PER_S = 10**6

_encode = msgspec.json.Encoder().encode


def pack(decision: Decision, decided_ms: int | None = None) -> str:
    """Times in whole microseconds, the failure share in parts per million; `decided_ms` is how long it took."""
    candidates = [_pack_candidate(each) for each in decision.candidates[:_CANDIDATES_MAX]]
    rejections = [
        (each.offer.lane, each.offer.backend, each.offer.model, each.objection.check, each.objection.values)
        for each in decision.rejections[:_REJECTIONS_MAX]
    ]
    return _encode((decision.said, candidates, rejections, decided_ms)).decode()


def unpack(text: str, model: str) -> dict[str, Any]:
    """Return the decision in the form of `Decision.as_data`, for a request of this `model`.

    Rows of earlier versions store this form.
    """
    packed = msgspec.json.decode(text)
    if isinstance(packed, dict):
        return packed
    more = packed[3:]
    return _decision(packed, model).as_data() | {"decided_ms": more[0] if more else None}


def sentence(text: str, model: str) -> str:
    """Return only the decision's reason, at a third of the cost of the whole decision."""
    packed = msgspec.json.decode(text)
    if isinstance(packed, dict):
        return str(packed["reason"])
    return _decision(packed, model).reason


def _decision(packed: list[Any], model: str) -> Decision:
    fields, candidates, rejections, *_ = packed
    return Decision(
        tuple(_unpack_candidate(*each) for each in candidates),
        tuple(
            Rejection(Offer(lane, backend, offered), Objection(check, tuple(values)))
            for lane, backend, offered, check, values in rejections
        ),
        fields,
        model=model,
    )


def _pack_candidate(candidate: Candidate) -> tuple[str | int, ...]:
    offer, predicted = candidate.offer, candidate.predicted
    load = predicted.load
    return (
        offer.lane,
        offer.backend,
        offer.model,
        int(predicted.first_token_s * _PER_S),
        int(predicted.wait_s * _PER_S),
        int(predicted.load_s * _PER_S),
        int(predicted.token_s * _PER_S),
        int(predicted.failure_share * _PER_S),
        predicted.tokens,
        predicted.nano,
        predicted.cost_nano,
        load.prompt_tokens,
        load.matched_tokens,
        load.beside,
        int(predicted.is_untried),
    )


def _unpack_candidate(lane: Any, backend: str, model: str, *numbers: int) -> Candidate:
    first_token, wait, loading, token, failure, tokens, nano, cost_nano, prompt, matched, beside, *more = numbers
    return Candidate(
        Offer(lane, backend, model),
        Prediction(
            first_token / _PER_S,
            wait / _PER_S,
            loading / _PER_S,
            token / _PER_S,
            tokens,
            nano,
            failure / _PER_S,
            cost_nano,
            Load(prompt, matched, 0, beside, None, is_resident=True, is_stream=True),
            bool(more and more[0]),
        ),
    )
