"""The coordinator on a shared database; its fence keeps out a process that was frozen while another one took over."""

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine, text

from gateway.coordination.coordinator import Coordinator, CoordinatorUnavailable, Deposed, HeldLease
from gateway.coordination.database import DatabaseCoordinator
from gateway.coordination.fence import fence, highest_epoch
from runtime.database import open_engine, read_sessions, write_sessions
from tests.gateway.coordination import contract

pytestmark = pytest.mark.anyio


@pytest.fixture
def engine(dsn: str) -> Iterator[Engine]:
    engine = open_engine(dsn)
    yield engine
    engine.dispose()


def coordinator_on(engine: Engine) -> Coordinator:
    return DatabaseCoordinator(read_sessions(engine), write_sessions(engine), poll_s=0.05)


async def test_it_does_what_coordinators_do(engine: Engine) -> None:
    one, other = coordinator_on(engine), coordinator_on(engine)
    await contract.leases_are_held_by_one(one, other)
    await contract.a_lease_ends_with_its_time(one, other)
    await contract.of_many_at_once_one_gets_it(one, other)
    await contract.entries_are_compared_and_changed(one, other)
    await contract.entries_end_with_their_time(one, other)
    await contract.a_watch_tells_what_is_and_what_comes(one, other)
    await contract.nonsense_is_refused(one)


async def test_a_process_that_lost_the_lease_writes_nothing(engine: Engine) -> None:
    """Frozen for longer than its lease, and awake again: the successor's epoch decides (threat 32)."""
    coordinator, write = coordinator_on(engine), write_sessions(engine)
    frozen = await coordinator.acquire("maturity", 1.0)
    assert frozen is not None
    with write() as session, session.begin():
        fence(session.connection(), frozen)
    successor = await contract.lease_within(coordinator, "maturity")
    with pytest.raises(Deposed), write() as session, session.begin():
        fence(session.connection(), frozen)
    with write() as session, session.begin():
        fence(session.connection(), successor)
        assert highest_epoch(session.connection(), "maturity") == successor.epoch
    # Seats that are kept elsewhere: the first write of a successor ends what came before.
    elsewhere = [HeldLease("elsewhere", epoch, "token", 5.0) for epoch in (7, 9)]
    for lease in elsewhere:
        with write() as session, session.begin():
            fence(session.connection(), lease)
    with pytest.raises(Deposed), write() as session, session.begin():
        fence(session.connection(), elsewhere[0])
    # A recreated coordinator begins above what the database knows.
    taken = await coordinator.acquire("elsewhere", 5.0)
    assert taken is not None
    assert taken.epoch > 9


async def test_a_failing_database_is_said_to_be_so_and_a_watch_waits_for_it(engine: Engine) -> None:
    coordinator = coordinator_on(engine)
    await coordinator.put("rights/a", b"1")
    watching = coordinator.watch("rights/")
    await contract.next_of(watching)
    with engine.begin() as connection:
        connection.execute(text("ALTER TABLE coordination_entry RENAME TO gone"))
    with pytest.raises(CoordinatorUnavailable):
        await coordinator.put("rights/b", b"2")
    with engine.begin() as connection:
        connection.execute(text("ALTER TABLE gone RENAME TO coordination_entry"))
    await coordinator.put("rights/b", b"2")
    assert (await contract.next_of(watching)).key == "rights/b"
    await watching.aclose()
