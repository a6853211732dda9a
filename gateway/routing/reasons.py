"""A decision's numbers in words and as data. Pure; made only for answers' headers, the log, and users who ask."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from accounting.money import format_usd
from gateway.lanes.base import Offer
from gateway.routing.policy import Objection
from gateway.routing.prediction import Prediction
from gateway.settings.base import FOREIGN
from runtime.redaction import without_internals

# Waits, cache hits and risks below these values are not mentioned.
_WORTH_SAYING_S = 1.0
_WORTH_SAYING = 20
_RISK = 0.05


def of_candidate(predicted: Prediction) -> str:
    load = predicted.load
    wait_s, load_s = predicted.wait_s, predicted.load_s
    return _in_words(
        round(predicted.time_s, 1),
        predicted.nano,
        round(wait_s) if wait_s >= _WORTH_SAYING_S else 0,
        round(load_s) if load_s >= _WORTH_SAYING_S else 0,
        100 * load.matched_tokens // load.prompt_tokens if load.matched_tokens else 0,
        round(100 * predicted.failure_share) if predicted.failure_share > _RISK else 0,
        predicted.is_untried,
    )


@lru_cache(maxsize=1024)
def _in_words(
    time_s: float, nano: int, wait_s: int, load_s: int, cached: int, failing: int, is_untried: bool
) -> str:
    """Describe a prediction, cached; shares are in percent.

    Every answer's header has them, most are equal, and formatting is slower than deciding.
    """
    text = f"about {time_s:.1f} s and ${format_usd(nano)}"
    if wait_s:
        text += f", {wait_s} s of it waiting"
    if load_s:
        text += f", {load_s} s of it loading the model"
    if cached > _WORTH_SAYING:
        text += f", {cached} % of the prompt cached"
    if failing:
        text += f", fails {failing} % of the time"
    if is_untried:
        text += ", not tried yet"
    return text


def of_only_one(offer: Offer, predicted: Prediction) -> str:
    return f"{offer.label}: {of_candidate(predicted)}; the only eligible lane"


def of_decision(first: Sequence[tuple[Offer, Prediction]], rejected: Sequence[tuple[Offer, str]]) -> str:
    """Return why the first of the candidates leads; `first` are at most the best two."""
    if not first:
        return "; ".join(f"{offer.label}: {reason}" for offer, reason in rejected) or "no lane has this model"
    offer, predicted = first[0]
    if len(first) == 1 and not rejected:
        return of_only_one(offer, predicted)
    text = f"{offer.label}: {of_candidate(predicted)}"
    own = [(other, reason) for other, reason in rejected if offer.lane in FOREIGN and other.lane not in FOREIGN]
    if own:
        return text + "; " + "; ".join(f"{other.label} {reason}" for other, reason in own)
    if len(first) > 1:
        second, foretold = first[1]
        if second.lane == "cluster" and second.state == "starting":
            return text + f"; {second.label} is not ready: {without_internals(second.note)}"
        return text + f"; next {second.label}: {of_candidate(foretold)}"
    return text + "; the only eligible lane"


def candidate_data(offer: Offer, predicted: Prediction) -> dict[str, Any]:
    """Return every term of the formula: seconds, tokens and nano-USD."""
    return {
        "lane": offer.label,
        "model": offer.model,
        "predicted_s": round(predicted.time_s, 3),
        "predicted_usd": format_usd(predicted.nano),
        "reason": of_candidate(predicted),
        "first_token_s": round(predicted.first_token_s, 4),
        "wait_s": round(predicted.wait_s, 4),
        "load_s": round(predicted.load_s, 3),
        "token_s": round(predicted.token_s, 5),
        "prompt_tokens": predicted.load.prompt_tokens,
        "cached_tokens": predicted.load.matched_tokens,
        "output_tokens": predicted.tokens,
        "beside": predicted.load.beside,
        "failure_share": round(predicted.failure_share, 4),
        "cost_nano": predicted.cost_nano,
        "is_tried": not predicted.is_untried,
    }


def rejection_data(offer: Offer, objection: Objection) -> dict[str, Any]:
    return {
        "lane": offer.label,
        "model": offer.model,
        "rule": objection.check,
        "reason": objection.sentence,
        "remedy": objection.remedy,
    }
