"""Draws the order in which the sellers of a model are asked, by matching's weights. Pure.

The first is matching's own choice. The others are drawn by the same shares without replacement. If a caller's rule
excludes a seller, the others keep the chances that they would have had without it.
"""

from collections.abc import Sequence
from math import log

from market.protocol.listings.prices import Prices, cost_nano
from market.protocol.matching.candidate import Candidate
from market.protocol.matching.caps import LearnedCap
from market.protocol.matching.choice import Chance, choose
from market.protocol.matching.track import Tally, Track
from market.protocol.matching.weights import Weighed
from market.protocol.offers import OnOffer
from market.protocol.records.amounts import Amount

USUAL_PROMPT_TOKENS = 512
USUAL_ANSWER_TOKENS = 256
"""The answer length at which listings are compared: the draw precedes any look at the request."""
DRAWN_MAX = 8


def drawn(rows: Sequence[OnOffer], chance: Chance) -> list[OnOffer]:
    """Return the listings that may be asked now, in order; one of each seller."""
    by_listing = {row.listing: row for row in _one_each(rows) if not row.suspended_why}
    choice = choose([_candidate(row) for row in by_listing.values()], chance)
    if choice is None:
        return []
    able = [each for each in choice.weighed if each.excluded is None and each.candidate is not choice.candidate]
    behind = sorted(able, key=lambda each: _lateness(each, chance))
    order = [choice.candidate, *(each.candidate for each in behind)]
    return [by_listing[candidate.listing] for candidate in order[:DRAWN_MAX]]


def excluded(rows: Sequence[OnOffer]) -> dict[str, str]:
    """Return why listings cannot be asked now, by their digest, in words."""
    words = {"broken": "fails far more often than others now", "full": "has no free slot", "probation": "is new"}
    found = {row.listing: _candidate(row).exclusion for row in rows}
    suspended = {row.listing: f"suspended: {row.suspended_why}" for row in rows if row.suspended_why}
    return {listing: words[reason] for listing, reason in found.items() if reason} | suspended


def _one_each(rows: Sequence[OnOffer]) -> list[OnOffer]:
    cheapest: dict[str, OnOffer] = {}
    for row in rows:
        known = cheapest.setdefault(row.seller, row)
        if _usual_nano(row) < _usual_nano(known):
            cheapest[row.seller] = row
    return list(cheapest.values())


def _lateness(each: Weighed, chance: Chance) -> tuple[bool, float]:
    """Return exponential waiting times: sorting by them draws without replacement. New sellers come last."""
    wait = -log(1.0 - chance())
    return (False, wait / each.share) if each.share else (True, wait)


def _candidate(row: OnOffer) -> Candidate:
    return Candidate(
        listing=row.listing,
        owner=row.seller,
        cost_nano=_usual_nano(row),
        track=Track(Tally(row.good, row.bad, row.at_s), Tally(row.audits_good, row.audits_bad, row.at_s)),
        cap=LearnedCap(row.slots, row.cap),
        in_flight=row.in_flight,
        is_probation=row.is_probation,
        is_broken=row.is_broken,
    )


def _usual_nano(row: OnOffer) -> int:
    prices = Prices(Amount(row.prompt_nano), Amount(row.completion_nano), Amount(row.cached_nano))
    return cost_nano(prices, USUAL_PROMPT_TOKENS, 0, USUAL_ANSWER_TOKENS)
