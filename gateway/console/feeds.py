"""Live pages: each change is rendered once for all viewers of the same page, and not at all without viewers."""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from typing import Any

import msgspec
import structlog

from gateway.console.pace_limit import Pacing, Spent, measured
from gateway.console.renderer import render

log = structlog.get_logger(__name__)

POINTS_EVENT = "mr:points"
_RENDER_S = 10.0
_LOOK_S = 1.0
_KEEP_ALIVE_S = 15.0
_BACK_OFF_S = 30.0
# The maximum time between two renderings of a page, in seconds, even under load.
_REST_MAX_S = 15.0
_KEEP_ALIVE = b": here\n\n"


@dataclass(frozen=True)
class Region:
    """The current content of one element of a page. The template has no visitor: many viewers share it.

    A region given to several pages is rendered once.
    """

    target_id: str
    template: str
    values: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def drawn(self) -> "_Drawn":
        text = render(self.template, **self.values)
        return _Drawn.of(f'<hx-partial hx-target="#{self.target_id}" hx-swap="innerMorph">{text}</hx-partial>')


@dataclass(frozen=True)
class Points:
    """The newest rows of a chart: time in seconds, then a number or None per series.

    The chart keeps one row per time, so the last rows may be sent repeatedly.
    """

    chart_id: str
    data: Sequence[Sequence[float | int | None]]

    @cached_property
    def drawn(self) -> "_Drawn":
        return _Drawn.of(msgspec.json.encode({"chart": self.chart_id, "rows": self.data}).decode())


@dataclass(frozen=True, slots=True)
class _Drawn:
    text: str
    digest: bytes

    @classmethod
    def of(cls, text: str) -> "_Drawn":
        return cls(text, blake2b(text.encode(), digest_size=16).digest())


@dataclass(frozen=True, slots=True)
class LivePage:
    """`key` names what is shown: viewers with the same permissions and the same key share one feed.

    Operators share a feed, admins of one organization share one, other users do not. `render` is called every
    `every_s` seconds, or less often if all pages together would take too much time.
    """

    key: str
    render: Callable[[], Awaitable[Sequence[Region | Points]]]
    every_s: float = 1.0


@dataclass(frozen=True, slots=True)
class _Piece:
    drawn: _Drawn
    version: int

    @property
    def text(self) -> str:
        return self.drawn.text


class Feed:
    """The pieces of one live page, and the task that renders them while the page has viewers."""

    def __init__(self, key: str, live_page: LivePage, pacing: Pacing, is_closing: Callable[[], bool]) -> None:
        self.key = key
        self._pacing = pacing
        self._page = live_page
        self._is_closing = is_closing
        self._epoch = time.time_ns()
        self._version = 0
        self._regions: dict[str, _Piece] = {}
        self._points: dict[str, _Piece] = {}
        self._news = asyncio.Event()
        self._is_closed = False
        # Nearly all viewers have seen everything but the last change, so they get the same bytes.
        self._last: tuple[int, bytes] = (-1, b"")
        self.viewers = 0
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._draw_on(), name=f"console feed {self.key}")

    def stop(self) -> None:
        if self._task:
            self._task.cancel()
        self._pacing.forget(self.key)

    async def pieces(self, seen_id: str) -> AsyncGenerator[bytes]:
        """Yield every change, starting with all that the viewer has not seen; ends with the gateway.

        A slow reader misses intermediate states, never the current one.
        """
        epoch, _, number = seen_id.partition("-")
        seen = int(number) if epoch == str(self._epoch) and number.isdecimal() else 0
        while not self._is_closed:
            news = self._news
            if self._version > seen:
                text, seen = self._since(seen), self._version
                yield text
                continue
            try:
                async with asyncio.timeout(_KEEP_ALIVE_S):
                    await news.wait()
            except TimeoutError:
                yield _KEEP_ALIVE

    def _since(self, seen: int) -> bytes:
        if self._last[0] != seen:
            self._last = (seen, self._assemble(seen))
        return self._last[1]

    def _assemble(self, seen: int) -> bytes:
        number = f"id: {self._epoch}-{self._version}\n"
        regions = "".join(piece.text for piece in self._regions.values() if piece.version > seen)
        lines = regions.replace("\r\n", "\n").replace("\r", "\n").split("\n") if regions else []
        text = (number + "".join(f"data: {line}\n" for line in lines) + "\n") if lines else ""
        for piece in self._points.values():
            if piece.version > seen:
                text += f"{number}event: {POINTS_EVENT}\ndata: {piece.text}\n\n"
        return text.encode()

    async def _draw_on(self) -> None:
        wait_s = 0.0
        while not self._is_closing():
            if wait_s > 0:
                await asyncio.sleep(min(wait_s, _LOOK_S))
                wait_s -= _LOOK_S
                continue
            spent = Spent()
            is_drawn = await measured(self._draw(), spent)
            self._pacing.note(self.key, spent.cpu_s, self._page.every_s)
            wait_s = self._rest_s() if is_drawn else max(self._page.every_s, _BACK_OFF_S)
        self._is_closed = True
        self._news.set()

    def _rest_s(self) -> float:
        every_s = self._page.every_s
        return min(every_s * self._pacing.stretch, max(every_s, _REST_MAX_S))

    async def _draw(self) -> bool:
        """Render the page and return whether it worked. On failure the last content stays; a retry follows."""
        try:
            async with asyncio.timeout(_RENDER_S):
                drawn = await self._page.render()
            changed = [self._take(piece) for piece in drawn]
        except Exception as error:
            log.error("live page failed", key=self.key, exc_info=error)
            return False
        if any(changed):
            self._version += 1
            self._last = (-1, b"")
            self._news, news = asyncio.Event(), self._news
            news.set()
        return True

    def _take(self, piece: Region | Points) -> bool:
        """Store the piece and return whether it differs from the last one."""
        if isinstance(piece, Region):
            pieces, name = self._regions, piece.target_id
        else:
            pieces, name = self._points, piece.chart_id
        drawn, before = piece.drawn, pieces.get(name)
        if before and before.drawn.digest == drawn.digest:
            return False
        pieces[name] = _Piece(drawn, self._version + 1)
        return True
