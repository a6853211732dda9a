"""Backends with a known number of slots get no more requests than that; who waits is served fairly."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest

from gateway.routing.queueing import turns
from gateway.settings import RoutingSettings
from tests.gateway.http.edges import Writer, backend, until, whole
from tests.gateway.requests.roads import ANSWER, nothing_is_left, receive, road, send, with_paid_lane

pytestmark = pytest.mark.anyio

ONE_SLOT = {"slots": 1}


class Mill:
    """One request at a time until it is told to go on; remembers who was served and how many at once."""

    def __init__(self, content: bytes = ANSWER) -> None:
        self.content = content
        self.go_on = asyncio.Event()
        self.served: list[str] = []
        self.busy = self.busiest = 0

    async def __call__(self, body: bytes, writer: Writer) -> None:
        self.served.append(json.loads(body).get("user", ""))
        self.busy += 1
        self.busiest = max(self.busiest, self.busy)
        try:
            await self.go_on.wait()
            writer.write(whole(self.content))
        finally:
            self.busy -= 1


async def test_who_waits_is_served_in_turn_by_key(tmp_path: Path) -> None:
    mill = Mill()
    async with backend(mill) as desk, road(tmp_path, desk.base_url, backend=ONE_SLOT) as running:
        other = running.services.keys.create("other", ("pool",))
        first = await send(running, user="a0")
        await until(lambda: mill.busy == 1)
        asking = [await send(running, user=f"a{number}") for number in range(1, 5)]
        await until(lambda: running.services.turns.all_waiting == 4)
        late = await send(running, key=other, user="b0")
        await until(lambda: running.services.turns.all_waiting == 5)
        assert re.search(rb"^millrace_queue_depth 5(\.0)?$", running.services.metrics.render(), re.MULTILINE)
        mill.go_on.set()
        for connection in (first, *asking, late):
            assert (await receive(connection)).status == 200
        assert mill.busiest == 1
        assert mill.served.index("b0") <= 2  # one that waits longer has had its turn before, and no more
        await nothing_is_left(running)


async def test_a_deadline_ends_the_wait_with_a_word_on_when_to_come_back(tmp_path: Path) -> None:
    mill = Mill()
    async with backend(mill) as desk, road(tmp_path, desk.base_url, backend=ONE_SLOT) as running:
        first = await send(running)
        await until(lambda: mill.busy == 1)
        refused = await receive(await send(running, millrace={"deadline_s": 0.2}))
        assert (refused.status, refused.error["code"]) == (429, "queue_full")
        assert int(refused.headers["retry-after"]) >= 1
        mill.go_on.set()
        assert (await receive(first)).status == 200
        await nothing_is_left(running)


async def test_the_room_is_bounded(tmp_path: Path) -> None:
    mill = Mill()
    async with backend(mill) as desk, road(tmp_path, desk.base_url, backend=ONE_SLOT) as running:
        running.services.turns._waiting_of_key_max = 2
        asking = [asyncio.create_task(receive(await send(running))) for _ in range(6)]
        # A request that comes only after this would find room.
        await until(lambda: sum(task.done() for task in asking) == 3)
        assert running.services.turns.all_waiting == 2
        mill.go_on.set()
        answers = await asyncio.gather(*asking)
        assert sorted(answered.status for answered in answers) == [200] * 3 + [429] * 3
        await nothing_is_left(running)


async def test_who_hangs_up_while_waiting_leaves_the_line(tmp_path: Path) -> None:
    mill = Mill()
    async with backend(mill) as desk, road(tmp_path, desk.base_url, backend=ONE_SLOT) as running:
        first = await send(running)
        await until(lambda: mill.busy == 1)
        waiting = [await send(running) for _ in range(20)]
        await until(lambda: running.services.turns.all_waiting == 20)
        for _, writer in waiting:
            writer.close()
        await until(lambda: running.services.turns.all_waiting == 0)
        mill.go_on.set()
        assert (await receive(first)).status == 200
        assert len(mill.served) == 1
        await nothing_is_left(running)


async def test_who_waits_goes_where_room_has_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second backend is being drained at first; nobody of the first one's line stays when it is back."""
    monkeypatch.setattr(turns, "LOOK_EVERY_S", 0.05)
    stuck, mill = Mill(), Mill()
    mill.go_on.set()
    async with (
        backend(stuck) as one,
        backend(mill) as two,
        road(tmp_path, one.base_url, two.base_url, backend=ONE_SLOT) as running,
    ):
        pool: Any = running.services.lanes["pool"]
        await pool.pool.drain("second", draining=True)
        first = await send(running)
        await until(lambda: stuck.busy == 1)
        waiting = [await send(running) for _ in range(5)]
        await until(lambda: running.services.turns.all_waiting == 5)
        await pool.pool.drain("second", draining=False)
        assert {(await receive(connection)).status for connection in waiting} == {200}
        assert len(mill.served) == 5
        stuck.go_on.set()
        assert (await receive(first)).status == 200
        await nothing_is_left(running)


async def test_who_waits_has_the_slots_that_a_backend_gets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody else comes, and nobody leaves."""
    monkeypatch.setattr(turns, "LOOK_EVERY_S", 0.05)
    mill = Mill()
    async with backend(mill) as desk, road(tmp_path, desk.base_url, backend=ONE_SLOT) as running:
        asking = [await send(running) for _ in range(3)]
        await until(lambda: running.services.turns.all_waiting == 2)
        pool: Any = running.services.lanes["pool"]
        first = pool.pool.find("first")
        first.settings = first.settings.model_copy(update={"slots": 3})
        first._renew()
        await until(lambda: mill.busy == 3)
        mill.go_on.set()
        assert {(await receive(connection)).status for connection in asking} == {200}
        await nothing_is_left(running)


async def test_a_longer_wait_than_the_settings_allow_is_none(tmp_path: Path) -> None:
    mill = Mill()
    routing = RoutingSettings(queue_s=0.2)
    async with backend(mill) as desk, road(tmp_path, desk.base_url, backend=ONE_SLOT, routing=routing) as running:
        asking = [asyncio.create_task(receive(await send(running))) for _ in range(2)]
        (refused,), (served,) = await asyncio.wait(asking, return_when=asyncio.FIRST_COMPLETED)
        mill.go_on.set()
        assert [(await refused).status, (await served).status] == [429, 200]


async def test_an_idle_backend_that_never_answered_is_tried_when_others_queue(tmp_path: Path) -> None:
    """Both slots of a fast backend are taken for long: 20 further requests do not wait beside its idle replica."""
    counted = ANSWER[:-1] + b', "usage": {"prompt_tokens": 5, "completion_tokens": 250}}'
    mill, idle = Mill(counted), Mill()
    mill.go_on.set()
    idle.go_on.set()
    async with (
        backend(mill) as one,
        backend(idle) as replica,
        road(tmp_path, one.base_url, replica.base_url, backend={"slots": 2}) as running,
    ):
        pool: Any = running.services.lanes["pool"]
        await pool.pool.drain("second", draining=True)
        for _ in range(4):  # what is known of the first: it is fast
            assert (await receive(await send(running))).status == 200
        mill.go_on.clear()
        long = [await send(running) for _ in range(2)]
        await until(lambda: mill.busy == 2)
        await pool.pool.drain("second", draining=False)
        others = [await send(running) for _ in range(20)]
        assert {(await receive(connection)).status for connection in others} == {200}
        assert len(idle.served) == 20
        mill.go_on.set()
        for connection in long:
            assert (await receive(connection)).status == 200
        await nothing_is_left(running)


@pytest.mark.parametrize(("time_nano_per_s", "lane"), [(10**12, "cloud"), (0, "pool")])
async def test_a_wait_past_the_target_is_bought_off_where_that_is_worth_it(
    tmp_path: Path, time_nano_per_s: int, lane: str
) -> None:
    """With a second worth nothing own machines are waited for, however long."""
    mill, acme = Mill(), Mill()
    acme.go_on.set()
    routing = RoutingSettings(target_s=1.0, time_nano_per_s=time_nano_per_s, speed_nano_per_s=0)
    async with (
        backend(mill) as desk,
        backend(acme) as provider,
        road(tmp_path, desk.base_url, backend=ONE_SLOT, routing=routing) as own,
        with_paid_lane(own, provider.base_url, "m") as running,
    ):
        first = await send(running, max_tokens=10)
        await until(lambda: mill.busy == 1)
        second = await send(running, max_tokens=10)
        await until(lambda: acme.served == [""] or running.services.turns.all_waiting == 1)
        mill.go_on.set()
        assert (await receive(second)).headers["x-millrace-lane"] == lane
        assert (await receive(first)).headers["x-millrace-lane"] == "pool"
        await nothing_is_left(running)


async def test_a_line_is_as_long_as_its_owner_says(tmp_path: Path) -> None:
    async def sit_on_it(body: bytes, writer: Writer) -> None:
        await asyncio.Event().wait()

    bounds = {"queue_length_max": 1}
    async with (
        backend(sit_on_it) as one,
        road(tmp_path, one.base_url, backend={"slots": 1}, routing=bounds) as running,
    ):
        asking = [await send(running)]
        await until(lambda: one.open == 1)
        asking.append(await send(running))
        await until(lambda: running.services.turns.all_waiting == 1)
        refused = await receive(await send(running))
        assert (refused.status, refused.error["code"]) == (429, "queue_full")
        for _, writer in asking:
            writer.close()
        await nothing_is_left(running)


async def test_requests_beyond_a_backends_connections_wait(tmp_path: Path) -> None:
    """A backend that names no slots has as many as it may have connections; nobody gets a 503."""
    mill = Mill()
    async with backend(mill) as desk, road(tmp_path, desk.base_url, routing={"connections_max": 2}) as running:
        asking = [await send(running) for _ in range(5)]
        await until(lambda: mill.busy == 2 and running.services.turns.all_waiting == 3)
        mill.go_on.set()
        assert [(await receive(connection)).status for connection in asking] == [200] * 5
        assert mill.busiest == 2
        await nothing_is_left(running)
