"""What every coordinator does, whatever keeps it: asked of each by its own tests."""

import asyncio
from collections.abc import AsyncGenerator

import pytest

from gateway.coordination.coordinator import (
    VALUE_BYTES_MAX,
    Coordinator,
    CoordinatorUnavailable,
    EntryChange,
    EntryInvalid,
    HeldLease,
)

STEP_S = 60.0
TTL_S = 2.0


async def leases_are_held_by_one(one: Coordinator, other: Coordinator) -> None:
    first = await one.acquire("chores", 60)
    assert first is not None
    assert await other.acquire("chores", 60) is None
    assert await one.acquire("chores", 60) is None, "it is not acquired twice"
    assert await other.acquire("others", 60) is not None
    assert await one.renew(first)
    await one.release(first)
    second = await other.acquire("chores", 60)
    assert second is not None
    assert second.epoch > first.epoch
    # Who has lost it can neither renew it nor give away what is another one's.
    assert not await one.renew(first)
    await one.release(first)
    assert await other.renew(second)
    await other.release(second)
    third = await one.acquire("chores", 60, above=second.epoch + 1000)
    assert third is not None
    assert third.epoch > second.epoch + 1000


async def a_lease_ends_with_its_time(one: Coordinator, other: Coordinator) -> None:
    first = await one.acquire("short", TTL_S)
    assert first is not None
    second = await lease_within(other, "short")
    assert second.epoch > first.epoch
    assert not await one.renew(first)


async def of_many_at_once_one_gets_it(one: Coordinator, other: Coordinator) -> None:
    for n in range(3):
        tries = await asyncio.gather(
            *(coordinator.acquire(f"rush{n}", 60) for _ in range(4) for coordinator in (one, other))
        )
        assert len([lease for lease in tries if lease]) == 1


async def entries_are_compared_and_changed(one: Coordinator, other: Coordinator) -> None:
    assert await one.get("a/b") is None
    first = await one.put("a/b", b"1", revision=0)
    assert first is not None
    assert await other.put("a/b", b"2", revision=0) is None
    second = await other.put("a/b", b"2", revision=first)
    assert second is not None
    assert second > first
    assert await one.put("a/b", b"3", revision=first) is None
    assert not await one.delete("a/b", revision=first)
    third = await one.put("a/b", b"3")
    assert third is not None
    await one.put("a/c", bytes(range(256)))
    await one.put("a-b", b"")
    found = await other.entries("a/")
    assert [(entry.key, entry.value) for entry in found] == [("a/b", b"3"), ("a/c", bytes(range(256)))]
    assert found[0].revision == third
    assert await one.delete("a/b", revision=third)
    assert not await one.delete("a/b")
    assert await other.get("a/b") is None
    # Ten that add one to a number lose none.
    await one.put("count", b"0")
    await asyncio.gather(*(_add_one(coordinator, 3) for coordinator in (one, other, one)))
    counted = await one.get("count")
    assert counted is not None
    assert counted.value == b"9"


async def _add_one(coordinator: Coordinator, times: int) -> None:
    for _ in range(times):
        while True:
            entry = await coordinator.get("count")
            assert entry is not None
            if await coordinator.put("count", b"%d" % (int(entry.value) + 1), revision=entry.revision):
                break


async def entries_end_with_their_time(one: Coordinator, other: Coordinator) -> None:
    await one.put("members/one", b"here", ttl_s=TTL_S)
    await other.put("members/two", b"here", ttl_s=60)
    watching = other.watch("members/")
    seen = {(await next_of(watching)).key for _ in range(2)}
    assert seen == {"members/one", "members/two"}
    assert await next_of(watching) == EntryChange("members/one", None)
    await watching.aclose()
    assert [entry.key for entry in await one.entries("members/")] == ["members/two"]


async def a_watch_tells_what_is_and_what_comes(one: Coordinator, other: Coordinator) -> None:
    await one.put("rights/a", b"1")
    watching = other.watch("rights/")
    assert await next_of(watching) == EntryChange("rights/a", b"1")
    await one.put("rightsx", b"not under it")
    for change in (EntryChange("rights/b", b"2"), EntryChange("rights/a", b"3"), EntryChange("rights/b", None)):
        if change.value is None:
            await one.delete(change.key)
        else:
            await one.put(change.key, change.value)
        assert await next_of(watching) == change
    await watching.aclose()


async def nonsense_is_refused(one: Coordinator) -> None:
    for key in ("", "/a", "a//b", "a b", "é", "a" * 201, "a%", "../a\n"):
        with pytest.raises(EntryInvalid):
            await one.put(key, b"")
        with pytest.raises(EntryInvalid):
            await one.entries(key)
    with pytest.raises(EntryInvalid):
        await one.put("a", bytes(VALUE_BYTES_MAX + 1))
    with pytest.raises(EntryInvalid):
        await one.acquire("a", 0)
    assert await one.put("a", bytes(VALUE_BYTES_MAX))


async def next_of(watching: AsyncGenerator[EntryChange]) -> EntryChange:
    async with asyncio.timeout(STEP_S):
        return await anext(watching)


async def lease_within(coordinator: Coordinator, name: str, above: int = 0) -> HeldLease:
    """The lease, as soon as it is free and the coordinator answers."""
    async with asyncio.timeout(STEP_S):
        while True:
            try:
                if lease := await coordinator.acquire(name, 60, above=above):
                    return lease
            except CoordinatorUnavailable:
                pass
            await asyncio.sleep(0.05)
