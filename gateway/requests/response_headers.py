"""The headers of every answer: the request's id, the backend, and the reason for the choice."""

from functools import lru_cache

from gateway.cache.answers import Source
from gateway.lanes.base import Answer, Offer
from gateway.requests.context import RequestContext
from gateway.requests.truncation import TRAILER
from runtime.request_ids import HEADER

_REASON_CHARS = 400
# A reason may quote a backend; strip line breaks so it cannot inject headers.
_UNPRINTABLE = dict.fromkeys((*range(32), 127), " ")
_FOUND: dict[Source, str] = {
    "hit": "the same request was answered before",
    "similar": "a question of the same meaning was answered before",
    "shared": "the same request was being answered just then",
}


def headers_of(context: RequestContext, answer: Answer) -> list[tuple[bytes, bytes]]:
    admitted, offer = context.admitted, context.offer
    headers = [
        (b"content-type", answer.content_type.encode("ascii", "replace")),
        (HEADER, context.call.id.encode()),
        (b"x-millrace-lane", context.lane.encode()),
        (b"x-millrace-reason", printable(_reason(context, offer))),
    ]
    if admitted.found:
        headers.append((b"x-millrace-cache", admitted.found.encode()))
    elif offer and offer.answers_as != context.call.request.model:
        headers.append((b"x-millrace-model", printable(offer.answers_as)))
    if admitted.ticket:
        headers += admitted.ticket.headers()
    if context.tally:
        headers.append((b"trailer", TRAILER))
    headers += answer.headers
    return headers


def _reason(context: RequestContext, offer: Offer | None) -> str:
    if context.admitted.found:
        return _FOUND[context.admitted.found]
    first = context.decision.candidates[0].offer
    if offer is None or offer is first:
        return context.decision.reason
    return f"{offer.label} took over from {first.label}; {context.decision.reason}"


@lru_cache(maxsize=1024)
def printable(text: str) -> bytes:
    """Return text as a header's value, cached, because most answers have the same few reasons."""
    return text[:_REASON_CHARS].translate(_UNPRINTABLE).encode("ascii", "replace")
