"""What takes time is made less often where all of it would take too much; what pages share is made once."""

import asyncio
import time

import pytest

from gateway.console.pace_limit import MeteredThreads, Pacing, Spent, measured
from gateway.console.shared_values import Shared


def test_all_intervals_grow_alike_once_there_is_too_much() -> None:
    now_s = 0.0
    pacing = Pacing(0.1, lambda: now_s)
    pacing.note("a", 3.0, 2.0)
    assert pacing.stretch == 1  # the first time is no measure
    pacing.note("a", 0.1, 2.0)
    pacing.note("b", 1.0, 4.0)
    pacing.note("b", 1.0, 4.0)
    assert pacing.stretch == pytest.approx(3)  # a twentieth and a quarter of the time, where a tenth may be had
    pacing.note("b", 9.0, 4.0)
    assert pacing.stretch == pytest.approx(3)  # one slow time is not how it is
    for _ in range(5):
        pacing.note("b", 2.0, 4.0)
    assert pacing.stretch == pytest.approx(5.5)
    pacing.forget("b")
    assert pacing.stretch == 1
    pacing.note("c", 10.0, 2.0)
    pacing.note("c", 10.0, 2.0)
    assert pacing.stretch == pytest.approx(50.5)
    now_s = 10_000.0
    assert pacing.stretch == 1  # nobody made it for long


@pytest.mark.anyio
async def test_what_is_shared_is_made_once_until_it_is_old() -> None:
    now_s, made = 0.0, 0
    shared = Shared(lambda: now_s)

    async def make() -> int:
        nonlocal made
        made += 1
        await asyncio.sleep(0)
        if made == 2:
            raise RuntimeError("not this time")
        return made

    assert await asyncio.gather(*(shared.get("all", 2.0, make) for _ in range(5))) == [1] * 5
    now_s = 2.0
    with pytest.raises(RuntimeError):
        await shared.get("all", 2.0, make)
    assert await shared.get("all", 2.0, make) == 3
    assert await shared.get("others", 2.0, make) == 4
    assert await shared.get("all", 2.0, make) == 3


@pytest.mark.anyio
async def test_cpu_time_is_counted_wherever_it_is_spent_and_waiting_is_none() -> None:
    """Twice 50 ms of work, one in a thread, in half a second or more."""

    def work() -> None:
        until_s = time.thread_time() + 0.05
        while time.thread_time() < until_s:
            pass

    async def draw(*, fails: bool) -> str:
        work()
        await asyncio.sleep(0.4)
        await asyncio.to_thread(work)
        if fails:
            raise RuntimeError("drawn in vain")
        return "drawn"

    loop, spent = asyncio.get_running_loop(), Spent()
    with MeteredThreads() as threads:
        loop.set_default_executor(threads)
        await asyncio.to_thread(work)
        assert await measured(draw(fails=False), spent) == "drawn"
        assert 0.1 <= spent.cpu_s < 0.5, "not what it slept"
        await asyncio.to_thread(work)
        with pytest.raises(RuntimeError):
            await measured(draw(fails=True), spent)
        assert 0.2 <= spent.cpu_s < 1.0
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(measured(asyncio.sleep(60), spent), 0.01)
