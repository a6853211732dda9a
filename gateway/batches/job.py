"""One unfinished batch in memory: finished, running and remaining requests; owned by the runner's event loop."""

import asyncio
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import orjson

from gateway.batches.batch import WINDOW_S, Batch, End
from gateway.batches.items import Items
from gateway.batches.lines import Item, raw_lines, read_line
from gateway.batches.output import Output
from gateway.batches.placement import OWN, PAID, BatchPace
from gateway.batches.reply import BatchReply, Code
from gateway.dialects.base import Question
from gateway.identity.caller import Caller

PRIORITY = 10
"""Lower than interactive requests."""
# Assumed duration of a request until answers have shown it, in seconds.
_ITEM_S = 2.0
_LEARN = 0.2
# The increase in concurrent requests with each answer.
_WIDEN = 1 / 32

Phase = Literal["opening", "running", "ending"]


@dataclass(frozen=True, slots=True)
class Callers:
    """One key's caller, split by lanes. Changes to its limits and lanes take effect with the next lookup."""

    all_lanes: Caller
    own: Caller
    paid: Caller | None

    @classmethod
    def of(cls, caller: Caller) -> "Callers":
        caller = replace(caller, priority=max(PRIORITY, caller.priority))
        paid = caller.lanes & PAID
        return cls(
            caller, replace(caller, lanes=caller.lanes & OWN), replace(caller, lanes=paid) if paid else None
        )


@dataclass(frozen=True, slots=True)
class Ready:
    """The next request of a batch, read and waiting for room."""

    item: Item
    question: Question


@dataclass(frozen=True, slots=True)
class Stop:
    """Why a batch ends, and what is reported for requests that were not asked."""

    end: End
    code: Code | None = None
    message: str = ""
    problem: dict[str, Any] | None = None

    @property
    def errors(self) -> str | None:
        return orjson.dumps([self.problem]).decode() if self.problem else None


class BatchJob:
    """`callers` is None before the key was looked up; `stop` means that nothing more is asked.

    There is no room before `look_again_s`, unless one of its requests ends. Until `held_until_s` none is asked.
    """

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.phase: Phase = "opening"
        self.stop: Stop | None = None
        self.task: asyncio.Task[None] | None = None
        self.asking: set[asyncio.Task[None]] = set()
        self.callers: Callers | None = None
        self.callers_until_s = 0.0
        self.ready: Ready | None = None
        self.look_again_s = 0.0
        self.held_until_s = 0.0
        self.is_left = False
        """Whether its requests are ended because the batch is, as if their caller hung up."""
        self._abreast = float("inf")
        self.noted = (batch.completed, batch.failed)
        self._item_s = _ITEM_S
        self._output: Output | None = None
        self._items: Items | None = None

    @property
    def output(self) -> Output:
        assert self._output, "the job was opened"
        return self._output

    @property
    def items(self) -> Items:
        assert self._items, "the job was opened"
        return self._items

    def open(self, output: Output, items: Items) -> None:
        self._output, self._items = output, items
        self.phase = "running"

    def close(self) -> None:
        if self._output and self._items:
            self._output.close()
            self._items.close()
        self._output = self._items = None

    @property
    def is_spent(self) -> bool:
        return not self.asking and self.ready is None and self.items.is_spent

    @property
    def counts(self) -> tuple[int, int]:
        return (self.output.completed, self.output.failed)

    def request_id(self, item: Item) -> str:
        return self.batch.request_id(item.line, self.output.attempts[item.line])

    def pace(self, abreast: int) -> BatchPace:
        left_s = self.batch.expires_ns / 1e9 - time.time()
        items = self.batch.total - len(self.output.done)
        return BatchPace(left_s, WINDOW_S, items, self._item_s, abreast)

    @property
    def has_room(self) -> bool:
        """Return whether its key's limits, as far as known, allow one more concurrent request."""
        return len(self.asking) < self._abreast

    def learn(self, duration_s: float) -> None:
        """Note that a request was answered, and how long it took."""
        self._item_s += _LEARN * (duration_s - self._item_s)
        self._abreast += _WIDEN

    def hold(self, until_s: float) -> None:
        """Note that a limit was reached: ask none before `until_s`, and fewer at a time from then on."""
        self.held_until_s = max(self.held_until_s, until_s)
        self._abreast = max(1, len(self.asking) - 1)

    def write_rest(self, path: Path, body_bytes_max: int) -> None:
        """Write an error for every line without an answer. Does I/O.

        Storage limits do not apply here, because otherwise the batch could not end.
        """
        stop = self.stop
        if stop is None or stop.code is None:
            return
        for line, raw in raw_lines(path, body_bytes_max):
            if line not in self.output.done:
                item, _, _ = read_line(line, raw, body_bytes_max)
                reply = BatchReply(code=stop.code, message=stop.message)
                self.output.add(line, item.custom_id, reply, is_last_word=True)
