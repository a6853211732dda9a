"""The time that a request allows for its first token."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from gateway.errors import DeadlinePassed
from gateway.requests.context import RequestContext

T = TypeVar("T")


async def in_time(context: RequestContext, doing: Coroutine[Any, Any, T]) -> T:
    """Return the result of `doing`. Raises DeadlinePassed if it takes longer than the request allows."""
    left_s = context.time_left_s
    if left_s is None:
        return await doing
    try:
        async with asyncio.timeout(left_s) as bound:
            return await doing
    except TimeoutError:
        if not bound.expired():
            raise
        raise DeadlinePassed(_message(context, left_s)) from None


def _message(context: RequestContext, left_s: float) -> str:
    why = (
        f"{context.offer.label} had the request for {left_s:.1f} s of it"
        if context.offer
        else "no backend has received it yet"
    )
    return f"The answer did not begin within deadline_s: {why}. Allow more time, or try again."
