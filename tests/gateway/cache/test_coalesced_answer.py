"""A shared answer that is stopped: nobody joins it any more, and nobody waits for it."""

import asyncio
import traceback
from dataclasses import replace

import pytest

from gateway.cache.answers import AnswerCache, Found, Lead
from gateway.cache.coalesced_answer import CoalescedAnswer
from gateway.identity.caller import Caller
from gateway.lanes.base import Answer, Meter, Out
from gateway.settings.cache import CacheSettings
from runtime.errors import LaneBrokeOff
from tests.gateway.cache.test_answers import ANN, RecordingSink, call

pytestmark = pytest.mark.anyio


class Endless:
    """Says one word and no more; takes its time to stop, as an upstream's connection may."""

    def __init__(self) -> None:
        self.may_stop = asyncio.Event()
        self.is_stopping = asyncio.Event()

    async def send(self, out: Out) -> None:
        out.write(b"one ")
        try:
            await asyncio.Event().wait()
        finally:
            self.is_stopping.set()
            await self.may_stop.wait()

    async def close(self) -> None: ...


class Broken:
    async def send(self, out: Out) -> None:
        out.write(b"one ")
        await asyncio.sleep(0.01)
        raise LaneBrokeOff("no more")

    async def close(self) -> None: ...


async def leads(answers: AnswerCache, caller: Caller = ANN) -> Lead:
    found = await answers.find(call("Who?", temperature=0), caller, "public")
    assert isinstance(found, Lead)
    return found


async def test_nobody_joins_what_is_only_being_stopped() -> None:
    answers, body = AnswerCache(CacheSettings()), Endless()
    lead = await leads(answers)
    shown = lead.show(Answer(200, "text/event-stream", body, Meter()))
    sending = asyncio.create_task(shown.body.send(RecordingSink()))
    await asyncio.sleep(0)
    sending.cancel()
    await body.is_stopping.wait()
    # It takes until now to unwind; a caller that asks meanwhile leads again, and others can follow it.
    other = await leads(answers)
    following = asyncio.create_task(answers.find(call("Who?", temperature=0), ANN, "public"))
    await asyncio.sleep(0)
    other.show(Answer(200, "application/json", Endless(), Meter()))
    assert isinstance(await following, Found)
    body.may_stop.set()
    with pytest.raises(asyncio.CancelledError):
        await sending
    await lead.end()
    await other.end()
    assert not answers._flights


async def test_who_reads_what_its_leader_never_sends_is_told() -> None:
    flight = CoalescedAnswer(lambda answer, body: None)
    shown = flight.lead(Answer(200, "text/event-stream", Endless(), Meter()))
    followed = await flight.follow()
    assert followed
    reading = asyncio.create_task(followed.body.send(RecordingSink()))
    await asyncio.sleep(0)
    await shown.body.close()
    with pytest.raises(LaneBrokeOff):
        await asyncio.wait_for(reading, 60)


async def _stopped() -> LaneBrokeOff:
    flight = CoalescedAnswer(lambda answer, body: None)
    shown = flight.lead(Answer(200, "text/event-stream", Endless(), Meter()))
    followed = await flight.follow()
    assert followed
    await shown.body.close()
    with pytest.raises(LaneBrokeOff) as stopped:
        await followed.body.send(RecordingSink())
    return stopped.value


async def test_errors_do_not_grow_with_those_who_raise_them() -> None:
    assert await _stopped() is not await _stopped()

    answers = AnswerCache(CacheSettings())
    lead = await leads(answers, replace(ANN, user_id="bob"))
    shown = lead.show(Answer(200, "text/event-stream", Broken(), Meter()))
    asked = [
        await answers.find(call("Who?", temperature=0), replace(ANN, user_id="bob"), "public") for _ in range(20)
    ]
    bodies = [shown.body, *(found.answer.body for found in asked if isinstance(found, Found))]
    assert len(bodies) == 21
    raised = await asyncio.gather(*(body.send(RecordingSink()) for body in bodies), return_exceptions=True)
    assert all(isinstance(error, LaneBrokeOff) for error in raised)
    assert len(traceback.extract_tb(raised[-1].__traceback__)) <= 4  # type: ignore[union-attr]
    await lead.end()
