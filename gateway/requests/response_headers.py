"""The headers that every answer has: its request's id, who gave it, and why that one."""

from functools import lru_cache

from gateway.cache.answers import Source
from gateway.lanes.base import Answer
from gateway.requests.context import Trip
from gateway.requests.final_chunks import TRAILER
from runtime.request_ids import HEADER

_REASON_CHARS = 400
# Line breaks in a reason, which may quote a backend, would be further headers.
_UNPRINTABLE = dict.fromkeys((*range(32), 127), " ")
_FOUND: dict[Source, str] = {
    "hit": "the same request was answered before",
    "similar": "a question of the same meaning was answered before",
    "shared": "the same request was being answered just then",
}


def headers_of(trip: Trip, answer: Answer) -> list[tuple[bytes, bytes]]:
    headers = [
        (b"content-type", answer.content_type.encode("ascii", "replace")),
        (HEADER, trip.call.id.encode()),
        (b"x-millrace-lane", trip.lane.encode()),
        (b"x-millrace-reason", printable(_reason(trip))),
    ]
    if trip.found:
        headers.append((b"x-millrace-cache", trip.found.encode()))
    elif trip.offer and trip.offer.answers_as != trip.call.request.model:
        headers.append((b"x-millrace-model", printable(trip.offer.answers_as)))
    if trip.ticket:
        headers += trip.ticket.headers()
    if trip.tally:
        headers.append((b"trailer", TRAILER))
    headers += answer.headers
    return headers


def _reason(trip: Trip) -> str:
    if trip.found:
        return _FOUND[trip.found]
    offer, first = trip.offer, trip.decision.candidates[0].offer
    if offer is None or offer is first:
        return trip.decision.reason
    return f"{offer.label} took over from {first.label}; {trip.decision.reason}"


@lru_cache(maxsize=1024)
def printable(text: str) -> bytes:
    """Text as a header's value. Most answers give the same few reasons."""
    return text[:_REASON_CHARS].translate(_UNPRINTABLE).encode("ascii", "replace")
