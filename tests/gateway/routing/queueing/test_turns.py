"""Slots are never given twice and never lost; who waits is served fairly, in time or not at all."""

import asyncio
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.routing.queueing.order import FairOrder
from gateway.routing.queueing.turns import Turns, Wish
from runtime.errors import QueueFull

entries = st.lists(
    st.tuples(st.sampled_from("abc"), st.sampled_from((0, 10)), st.integers(0, 50)), min_size=1, max_size=40
)


@given(entries)
def test_bands_then_turns_then_deadlines(added: list[tuple[str, int, int]]) -> None:
    order: FairOrder[tuple[str, int, int]] = FairOrder()
    for entry in added:
        key, priority, deadline = entry
        order.add(entry, key, priority, deadline)

    served = []
    while (entry_ := order.pop()) is not None:
        served.append(entry_)

    assert sorted(served) == sorted(added)
    assert [entry[1] for entry in served] == sorted(entry[1] for entry in added)
    for band in (0, 10):
        of_band = [entry for entry in served if entry[1] == band]
        for key in "abc":
            deadlines = [entry[2] for entry in of_band if entry[0] == key]
            assert deadlines == sorted(deadlines)
        for end in range(len(of_band)):
            _check_fair(of_band, end)


def _check_fair(of_band: list[tuple[str, int, int]], end: int) -> None:
    """Among keys that still wait, nobody has been served more than one turn ahead of another."""
    waiting = {entry[0] for entry in of_band[end:]}
    turns = [sum(entry[0] == key for entry in of_band[:end]) for key in waiting]
    assert max(turns) - min(turns) <= 1


def test_a_key_that_comes_late_is_not_behind_those_that_were_served_long() -> None:
    order: FairOrder[str] = FairOrder()
    for number in range(20):
        order.add(f"a{number}", "a", 0, number)
    for _ in range(10):
        order.pop()
    order.add("b0", "b", 0, 0)

    assert "b0" in (order.pop(), order.pop())


def test_a_key_that_comes_back_at_once_does_not_keep_others_waiting() -> None:
    order: FairOrder[str] = FairOrder()
    for number in range(3):
        order.add(f"b{number}", "b", 0, 0)
    order.add("a", "a", 0, 0)

    served = []
    for _ in range(6):
        entry = order.pop()
        assert entry
        served.append(entry)
        if entry == "a":
            order.add("a", "a", 0, 0)

    assert [entry for entry in served if entry != "a"] == ["b0", "b1", "b2"]


@pytest.mark.anyio
async def test_whatever_happens_no_slot_is_lost_or_given_twice() -> None:
    chance, turns, serving, most = random.Random(3), Turns(waiting_max=30, waiting_of_key_max=20), 0, 0

    async def ask(number: int) -> None:
        nonlocal serving, most
        wish = Wish(f"key-{number % 3}", 10 * (number % 2), patience_s=chance.choice((0.001, 0.05, 5)))
        await turns.take("pool:desk", 4, wish)
        serving += 1
        most = max(most, serving)
        try:
            await asyncio.sleep(chance.random() / 200)
        finally:
            serving -= 1
            turns.leave("pool:desk")

    tasks = [asyncio.create_task(ask(number)) for number in range(300)]
    for task in tasks[::7]:
        await asyncio.sleep(0)
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)

    assert all(result is None or isinstance(result, QueueFull | asyncio.CancelledError) for result in results)
    assert most == 4
    assert serving == turns.all_waiting == 0
    assert all(turns.try_take("pool:desk", 4) for _ in range(4))
    assert not turns.try_take("pool:desk", 4)


@pytest.mark.anyio
@pytest.mark.parametrize("comes", [True, False])
async def test_new_slots_go_to_those_who_wait(comes: bool) -> None:
    """A request that comes meanwhile has none of them, and nobody has to come or to leave for it."""
    turns = Turns()
    assert turns.try_take("pool:desk", 1)
    waiting = [asyncio.create_task(turns.take("pool:desk", 1, Wish("a", 0, 60))) for _ in range(3)]
    await asyncio.sleep(0)
    if comes:
        assert not turns.try_take("pool:desk", 3)
    else:
        turns.resize("pool:desk", 3)
    for _ in range(100):
        await asyncio.sleep(0)
    late = [task for task in waiting if not task.done()]
    assert len(late) == 1
    turns.leave("pool:desk")
    assert await late.pop()


@pytest.mark.anyio
async def test_who_is_sent_away_is_told_when_to_come_back() -> None:
    turns = Turns(waiting_max=2)
    assert turns.try_take("cluster", 1)
    waiting = [asyncio.create_task(turns.take("cluster", 1, Wish("a", 0, 5, request_s=4))) for _ in range(2)]
    await asyncio.sleep(0)

    with pytest.raises(QueueFull) as refused:
        await turns.take("cluster", 1, Wish("b", 0, 5, request_s=4))
    assert refused.value.retry_after_s == 12
    with pytest.raises(QueueFull):
        await Turns(waiting_of_key_max=0).take("cluster", 0, Wish("a", 0, 5))

    for task in waiting:
        turns.leave("cluster")
        await task
