"""Figures of an answer from the log and the ledger, a moment after its end."""

import asyncio
from typing import Annotated

from fastapi import APIRouter, Path, Response

from accounting.ledger.postings import FROM_CACHE
from gateway.billing.request_log import RequestEntry
from gateway.console.access import Viewer
from gateway.console.pages.playground.question import PATH
from gateway.console.pages.requests.one import find_visible, tokens_per_s
from gateway.console.renderer import pages_of, partial
from runtime.errors import NotFound

PATIENCE_S = 6.0
"""Requests are posted in batches, about every half second."""
_LOOK_EVERY_S = 0.15

RequestId = Annotated[str, Path(min_length=1, max_length=200, pattern=r"^[A-Za-z0-9_-]+$")]

router = APIRouter(prefix=f"{PATH}/answers")


@router.get("/{request_id}")
async def show(visitor: Viewer, request_id: RequestId) -> Response:
    """Wait briefly for the row. Raises NotFound, also for other users' requests."""
    loop = asyncio.get_running_loop()
    until_s = loop.time() + PATIENCE_S
    while (entry := await asyncio.to_thread(find_visible, visitor, request_id)) is None:
        if loop.time() >= until_s:
            raise NotFound("Request not found. It may not be in the log yet, or it is not yours.")
        await asyncio.sleep(_LOOK_EVERY_S)
    has_requests = any(page.path == "/console/requests" for page in pages_of(visitor.request))
    return partial(
        "playground/facts.html",
        visitor,
        entry=entry,
        tokens_per_s=_speed(entry),
        has_requests=has_requests,
    )


def _speed(entry: RequestEntry) -> float | None:
    """Return tokens per second after the first token, or over all its time. None for cached answers."""
    if entry.lane == FROM_CACHE or not entry.completion_tokens or not entry.duration_ms:
        return None
    return tokens_per_s(entry) or 1000 * entry.completion_tokens / entry.duration_ms
