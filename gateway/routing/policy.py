"""Hard rules, checked before offers are weighed: permissions, abilities and preferences. Pure.

Every check has a name, a reason for the rejection, and a remedy. Configured rules (a key's, a privacy label) are
distinct from a backend's missing abilities, because they lead to different errors.
"""

from collections.abc import Iterable, Set
from dataclasses import dataclass
from typing import Any, Literal

from msgspec import Struct

from accounting.money import charge, format_usd
from gateway.dialects.openai import DOES, GENERATES, Kind
from gateway.identity.caller import Caller
from gateway.lanes.base import Offer
from gateway.lanes.features import Feature
from gateway.routing.need import NO_PREFERENCES, Need, Preferences
from gateway.settings.base import FOREIGN, PRIVACY_RANK, Privacy
from runtime.redaction import without_internals

Check = Literal[
    "lane",
    "lanes",
    "models",
    "privacy",
    "regions",
    "kind",
    "features",
    "context",
    "provider",
    "price",
    "spend",
    "down",
    "draining",
    "breaker",
    "paused",
]

RULES: frozenset[Check] = frozenset(("lanes", "models", "privacy", "regions", "spend", "paused"))

# Prompt estimates have an error: refuse a prompt for its length only if it is too long even after this margin.
_CONTEXT_CERTAIN = 0.8

_WORDS: dict[Check, tuple[str, str]] = {
    "lane": ("the request asks for the {} lane", "leave out millrace.lane, or name another lane"),
    "lanes": (
        "rule 'lanes' of key {} allows {}, not {}",
        "use a key with this lane: `millrace key create NAME --lanes LANES`",
    ),
    "models": ("rule 'models' of key {} does not allow {}", "use a key that may use this model"),
    "privacy": (
        "the request is labeled {}, and this backend may receive {} requests only",
        "use a model on your machines",
    ),
    "regions": ("rule 'regions' of key {} allows {}, and this backend is in {}", "use a backend in these regions"),
    "kind": ("{}", "use a model that does; GET /v1/models lists them"),
    "features": ("does not support {}", "leave out the fields that need it, or use another model"),
    "context": (
        "its context of {} tokens is too short for about {} of prompt and {} of answer",
        "shorten the prompt",
    ),
    "provider": ("provider.{} excludes it", "change the request's provider preferences"),
    "price": ("costs more than provider.max_price.{} allows", "raise the price, or leave it out"),
    "spend": (
        "would cost about ${}, and {} allows ${} at most",
        "reduce the request, or ask an admin to raise the limit",
    ),
    "down": ("{}", "see the backend's own log"),
    "draining": ("is draining and accepts no new requests", "undo the drain, or wait"),
    "breaker": ("{}", "wait a few seconds"),
    "paused": (
        "an operator has paused the {} lane",
        "ask an instance admin to resume it on the console's overview",
    ),
}


@dataclass(frozen=True, slots=True)
class Rule:
    """The rule that forbids an offer: its name, its owner, and what it allows."""

    name: str
    sentence: str


class Objection(Struct, frozen=True):
    """A reason against an offer, formatted as text only on request."""

    check: Check
    values: tuple[Any, ...] = ()

    @property
    def sentence(self) -> str:
        return _WORDS[self.check][0].format(*self.values)

    @property
    def told(self) -> str:
        """Return the sentence for callers; for a backend that is down, without the operator's remedy."""
        if self.check != "down":
            return self.sentence
        return without_internals(self.sentence.partition("; ")[0])

    @property
    def remedy(self) -> str:
        return _WORDS[self.check][1]

    @property
    def rule(self) -> Rule | None:
        return Rule(self.check, self.sentence) if self.check in RULES else None


@dataclass(frozen=True, slots=True)
class Ceiling:
    """The maximum predicted cost of one request, and the source of this limit."""

    amount_nano: int
    source: str

    def objection(self, nano: int) -> Objection:
        return Objection("spend", (format_usd(nano), self.source, format_usd(self.amount_nano)))


def objection_to(offer: Offer, need: Need, caller: Caller) -> Objection | None:
    """Return the first objection to this offer, other than health; None if it may and can answer."""
    if need.lane and offer.lane != need.lane:
        return Objection("lane", (need.lane,))
    found = _forbidden(offer, need, caller) or _unable(offer, need)
    if found is None and need.preferences is not NO_PREFERENCES:
        found = _unwanted(offer, need.preferences)
    return found


def clearance_of(offer: Offer) -> Privacy:
    """Return the most private label that may go there.

    A third party's machine never gets private requests. A provider or seller gets internal ones if this gateway's
    owner allows it, otherwise only public ones.
    """
    if offer.lane not in FOREIGN:
        return offer.clearance
    return "internal" if offer.clearance == "internal" else "public"


def _forbidden(offer: Offer, need: Need, caller: Caller) -> Objection | None:
    if offer.lane not in caller.lanes:
        allowed = ", ".join(sorted(caller.lanes)) or "none"
        return Objection("lanes", (caller.key_prefix, allowed, offer.lane))
    if caller.models is not None and offer.model not in caller.models:
        return Objection("models", (caller.key_prefix, offer.model))
    if need.privacy != "public":
        clearance = clearance_of(offer)
        if PRIVACY_RANK[need.privacy] > PRIVACY_RANK[clearance]:
            return Objection("privacy", (need.privacy, clearance))
    # Own machines are in their owner's region; a provider without a known region is in none.
    if (
        caller.regions is not None
        and (offer.region or offer.lane in FOREIGN)
        and offer.region not in caller.regions
    ):
        regions = ", ".join(sorted(caller.regions)) or "none"
        return Objection("regions", (caller.key_prefix, regions, offer.region or "an unknown one"))
    return None


def lack_of(offer: Offer, kind: Kind, features: Set[Feature]) -> Objection | None:
    """Return an objection for an ability that the model at this backend lacks, for any caller."""
    if kind not in offer.kinds:
        is_embedding = kind in GENERATES and "embedding" in offer.kinds
        return Objection("kind", ("is an embedding model" if is_embedding else f"does not {DOES[kind]}",))
    if not features <= offer.features:
        return Objection("features", (", ".join(sorted(features - offer.features)),))
    return None


def _unable(offer: Offer, need: Need) -> Objection | None:
    if lack := lack_of(offer, need.kind, need.features):
        return lack
    if offer.state == "down":
        return Objection("down", (offer.note or "is down",))
    if offer.state == "draining":
        return Objection("draining")
    if offer.context_tokens is not None and context_needed(need) > offer.context_tokens:
        return Objection("context", (offer.context_tokens, need.prompt_tokens, need.output_tokens or 0))
    return None


def context_needed(need: Need) -> float:
    """Return the tokens of context without which an answer is impossible."""
    return _CONTEXT_CERTAIN * need.prompt_tokens + (need.output_tokens or 0)


def _unwanted(offer: Offer, wished: Preferences) -> Objection | None:
    names = names_of(offer)
    if wished.only is not None and not names & wished.only:
        return Objection("provider", ("only",))
    if names & wished.ignore:
        return Objection("provider", ("ignore",))
    if wished.order and not wished.allows_fallbacks and not names & set(wished.order):
        return Objection("provider", ("order, with allow_fallbacks false,",))
    if wished.quantizations is not None and (offer.quantization or "unknown").lower() not in wished.quantizations:
        return Objection("provider", ("quantizations",))
    if wished.denies_data_collection and offer.keeps_data:
        return Objection("provider", ("data_collection",))
    return _too_dear(offer, wished)


def _too_dear(offer: Offer, wished: Preferences) -> Objection | None:
    if offer.price is None:
        return None
    price = offer.price.price
    if wished.prompt_nano_max is not None and price.prompt_nano > wished.prompt_nano_max:
        return Objection("price", ("prompt",))
    if wished.completion_nano_max is not None and price.completion_nano > wished.completion_nano_max:
        return Objection("price", ("completion",))
    return None


def names_of(offer: Offer) -> frozenset[str]:
    """Return the names of an offer in a request's preferences: its backend, provider, lane, or both."""
    provider = (offer.price.provider,) if offer.price and offer.price.provider else ()
    return frozenset(name.lower() for name in (offer.backend, offer.lane, offer.label, *provider))


def place_in(order: Iterable[str], offer: Offer) -> int:
    """Return the position at which the request names this offer; unnamed offers come last."""
    names = names_of(offer)
    place = 0
    for place, name in enumerate(order, 1):
        if name in names:
            return place - 1
    return place


def price_nano(offer: Offer, need: Need) -> int:
    """Return the expected cost of the answer, in nano-USD."""
    if offer.price is None:
        return 0
    return charge(offer.price.price_for(need.prompt_tokens), need.prompt_tokens, 0, need.expected_tokens)
