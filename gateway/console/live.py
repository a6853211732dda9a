"""One stream of server-sent events per open page: the limits on streams, and when they end."""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Any

from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from gateway.console.access import Visitor
from gateway.console.browser import COOKIE
from gateway.console.feeds import Feed, LivePage, Points, Region
from gateway.console.pace_limit import MeteredThreads, Pacing
from runtime.errors import RateLimited

__all__ = ["Feeds", "LivePage", "Points", "Region", "live_parts", "live_response"]

STREAMS_MAX = 200
STREAMS_PER_USER = 8
LASTS_S = 600.0
"""Lifetime of a stream. Browsers then open a new one, so that unread data does not pile up."""
SHARE_OF_CORE = 0.03
"""The share of one core that rendering all pages may take; beyond it, pages are rendered less often."""
# Checked with each piece, of which one comes at least every 15 s.
_CHECK_S = 10.0
_STALLED_S = 60.0
_RETRY_S = 30
_SIGNED_OUT = b"event: mr:signed-out\ndata: \n\n"
_HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no", "x-content-type-options": "nosniff"}


class Feeds:
    """Every feed with viewers, and the number of viewers. `is_closing` tells whether the gateway is stopping."""

    def __init__(self, is_closing: Callable[[], bool]) -> None:
        self._is_closing = is_closing
        self._feeds: dict[str, Feed] = {}
        self._users: Counter[str] = Counter()
        self._pacing = Pacing(SHARE_OF_CORE)
        self._has_threads = False

    def __len__(self) -> int:
        return len(self._feeds)

    def refuse_too_many(self, user_id: str) -> None:
        """Raise RateLimited if the user, or all users together, have too many streams."""
        if self._users[user_id] >= STREAMS_PER_USER:
            raise RateLimited(
                f"You have {STREAMS_PER_USER} live pages open, which is the limit. Close one of them.",
                _RETRY_S,
            )
        if self._users.total() >= STREAMS_MAX:
            raise RateLimited(f"{STREAMS_MAX} live pages are open, which is the limit. Try again later.", _RETRY_S)

    def enter(self, live_page: LivePage, visitor: Visitor) -> Feed:
        if not self._has_threads:
            # Installed with the first live page; earlier threads end once they are idle.
            asyncio.get_running_loop().set_default_executor(MeteredThreads(thread_name_prefix="asyncio"))
            self._has_threads = True
        self._users[visitor.caller.user_id] += 1
        key = f"{_scope_of(visitor)}:{live_page.key}"
        feed = self._feeds.get(key)
        if feed is None:
            feed = self._feeds[key] = Feed(key, live_page, self._pacing, self._is_closing)
            feed.start()
        feed.viewers += 1
        return feed

    def leave(self, feed: Feed, user_id: str) -> None:
        feed.viewers -= 1
        if not feed.viewers:
            feed.stop()
            if self._feeds.get(feed.key) is feed:
                del self._feeds[feed.key]
        self._users[user_id] -= 1
        if not self._users[user_id]:
            del self._users[user_id]


def _scope_of(visitor: Visitor) -> str:
    """Return who shares a feed: all operators, all admins of an organization, or one key or user."""
    caller = visitor.caller
    if visitor.is_operator:
        return "instance"
    if visitor.is_manager:
        return f"organization {caller.organization_id}"
    return f"user {caller.user_id} {caller.key_id}"


async def live_response(visitor: Visitor, live_page: LivePage) -> "LiveResponse":
    """Return the stream of a page's changes and of general notices. Raises RateLimited if too many are open."""
    request = visitor.request
    feeds: Feeds = request.app.state.feeds
    feeds.refuse_too_many(visitor.caller.user_id)
    shown_page: LivePage = request.app.state.first_sales.beside(live_page, visitor)
    return LiveResponse(feeds, visitor, shown_page, request.headers.get("last-event-id", ""))


async def live_parts(
    visitor: Visitor,
    key: str,
    every_s: float,
    parts: Mapping[str, str],
    values: Callable[[], Awaitable[Mapping[str, Any]]],
) -> "LiveResponse":
    """Return the stream of a page's live elements: `parts` has their ids with the templates that show `values`."""

    async def render() -> list[Region | Points]:
        found = await values()
        return [Region(target_id, template, found) for target_id, template in parts.items()]

    return await live_response(visitor, LivePage(key, render, every_s))


class LiveResponse(StreamingResponse):
    """Ends after `LASTS_S`, with the session, with the gateway, or if the client stops reading."""

    def __init__(self, feeds: Feeds, visitor: Visitor, live_page: LivePage, seen_id: str) -> None:
        self._feeds = feeds
        self._visitor = visitor
        self._page = live_page
        self._seen_id = seen_id
        super().__init__((), headers=_HEADERS, media_type="text/event-stream")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        user_id = self._visitor.caller.user_id
        feed = self._feeds.enter(self._page, self._visitor)
        self.body_iterator = self._events(feed)
        try:
            async with asyncio.timeout(LASTS_S + _STALLED_S):
                await super().__call__(scope, receive, send)
        except TimeoutError:
            return  # the client has not read for long
        finally:
            self._feeds.leave(feed, user_id)

    async def _events(self, feed: Feed) -> AsyncGenerator[bytes]:
        begun_s = checked_s = time.monotonic()
        async with contextlib.aclosing(feed.pieces(self._seen_id)) as pieces:
            async for text in pieces:
                yield text
                now_s = time.monotonic()
                if now_s - begun_s >= LASTS_S:
                    return
                if now_s - checked_s >= _CHECK_S:
                    checked_s = now_s
                    if not await self._is_signed_in():
                        yield _SIGNED_OUT
                        return

    async def _is_signed_in(self) -> bool:
        """Whether the session still exists with the same role: a user with fewer permissions gets another page."""
        cookie = self._visitor.request.cookies.get(COOKIE, "")
        who = await asyncio.to_thread(self._visitor.directory.sessions.find, cookie)
        before = self._visitor.caller
        return who is not None and (who.caller.role, who.caller.organization_id) == (
            before.role,
            before.organization_id,
        )
