"""A provider that talks as a test wants it to, at a nano-dollar a token, and what its caller got and paid."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accounting.metering.prices import PricedModel
from accounting.money import Price
from tests.gateway.http.edges import DONE, SSE, Answered, Backend, Edge, Reader, Writer, backend, chunk, until
from tests.gateway.requests.roads import left, road, send, text_of, with_paid_lane

# A nano-dollar a token, and nothing for the prompt: credits are tokens. Text is counted as a token per word.
PRICE = PricedModel("cloud", "paid", "test", Price(0, 0, 10**6), "acme", max_output_tokens=4000)
WORD = "word"
TIME_S = 60.0
CREDITS = 10**6


def spoken(index: int = 0, text: str = WORD, finish: str | None = None) -> bytes:
    choice = {"index": index, "delta": {"content": text}, "finish_reason": finish}
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 7, "model": "paid"}
    return b"data: " + json.dumps(head | {"choices": [choice]}).encode() + b"\n\n"


class Talker:
    """Says so many words to each choice, in pieces; waits in front of the one numbered `waits_at` until told.

    In the end it says that it has `counted` so many tokens, where that is more than none.
    """

    def __init__(self, words: int, choices: int = 1, waits_at: int = -1, counted: int = 0) -> None:
        self._words = words
        self._counted = counted
        self._choices = choices
        self._waits_at = waits_at
        self.goes_on = asyncio.Event()
        self.was_stopped = False

    async def __call__(self, body: bytes, writer: Writer) -> None:
        try:
            writer.write(SSE)
            for number in range(self._words):
                if number == self._waits_at:
                    await writer.drain()
                    await self.goes_on.wait()
                is_last = number == self._words - 1
                for index in range(self._choices):
                    writer.write(chunk(spoken(index, finish="stop" if is_last else None)))
                if number % 40 == 0:
                    await writer.drain()
                    await asyncio.sleep(0)
            if self._counted:
                usage = {"prompt_tokens": 1, "completion_tokens": self._counted}
                writer.write(chunk(b"data: %b\n\n" % json.dumps({"choices": [], "usage": usage}).encode()))
            writer.write(chunk(DONE) + b"0\r\n\r\n")
        except (ConnectionError, asyncio.CancelledError):
            self.was_stopped = True
            raise


@asynccontextmanager
async def paid(
    tmp_path: Path, talker: Callable[[bytes, Writer], Awaitable[None]], credit_nano: int
) -> AsyncIterator[tuple[Edge, Backend]]:
    async with (
        backend(talker) as provider,
        road(tmp_path) as own,
        with_paid_lane(own, provider.base_url, "paid", price=PRICE, credit_nano=credit_nano) as running,
    ):
        yield running, provider


@dataclass(frozen=True)
class Streamed:
    """An answer with what stands behind its last chunk."""

    answered: Answered
    trailers: bytes

    @property
    def chunks(self) -> list[dict[str, Any]]:
        return [json.loads(event) for event in self.answered.events if event != b"[DONE]"]

    @property
    def words(self) -> int:
        return text_of(self.answered).count(WORD)

    @property
    def ended(self) -> str:
        """Why, as the last chunk says; the trailer says the same."""
        said = [each["millrace"]["ended"] for each in self.chunks if "millrace" in each]
        assert len(said) == 1
        assert self.trailers == b"x-millrace-ended: %b\r\n\r\n" % said[0].encode()
        assert self.answered.headers["trailer"] == "x-millrace-ended"
        assert self.answered.events[-1] == b"[DONE]"
        return str(said[0])

    @property
    def finishes(self) -> dict[int, str]:
        choices = [choice for each in self.chunks for choice in each["choices"]]
        return {each["index"]: each["finish_reason"] for each in choices if each["finish_reason"]}


async def stream(running: Edge, **fields: Any) -> Streamed:
    return await ending(await send(running, model="paid", stream=True, **fields))


async def ending(connection: tuple[Reader, Writer]) -> Streamed:
    reader, writer = connection
    raw = await asyncio.wait_for(reader.read(), TIME_S)
    writer.close()
    if b"\r\n0\r\n" not in raw:
        return Streamed(Answered.read_from(raw), b"")
    whole, _, trailers = raw.rpartition(b"\r\n0\r\n")
    return Streamed(Answered.read_from(whole + b"\r\n0\r\n\r\n"), trailers)


async def spent(running: Edge, credit_nano: int = CREDITS) -> int:
    """What was charged, once all is booked and nothing is put aside any more."""
    ledger = running.services.ledger
    await until(lambda: left(running) == 0 and running.services.bookkeeper.waiting == 0, TIME_S)
    async with asyncio.timeout(TIME_S):
        while (balance := await ledger.balance("owner")).held_nano:
            await asyncio.sleep(0.1)
    assert await ledger.findings(deep=True) == []
    return credit_nano - balance.posted_nano
