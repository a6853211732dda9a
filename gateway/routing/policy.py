"""Hard rules, checked before anything is weighed: which lanes a caller may use. Pure."""

from dataclasses import dataclass

from gateway.identity.caller import Caller
from gateway.lanes.base import Offer


@dataclass(frozen=True, slots=True)
class Rule:
    """Why an offer may not be used: the rule by name, whose it is, and what it allows."""

    name: str
    sentence: str


def forbids(caller: Caller, offer: Offer) -> Rule | None:
    """The rule that stands against this offer for this caller, if any."""
    if offer.lane not in caller.lanes:
        allowed = ", ".join(sorted(caller.lanes)) or "none"
        return Rule("lanes", f"rule 'lanes' of key {caller.key_prefix} allows {allowed}, not {offer.lane}")
    return None
