"""A ledger that several gateways share: one writes, even if one dies or freezes; answered events are kept once."""

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

import pytest
from sqlalchemy import Engine, func, select
from sqlalchemy.orm import Session

from accounting.errors import DatabaseFailing, InsufficientCredit
from accounting.ledger.poster import Poster
from accounting.ledger.postings import Posted
from accounting.replication.errors import Deposed, LeaderAway
from accounting.replication.shared import SharedLedger
from accounting.replication.tables import leader_table, outbox_table
from accounting.rules import burst
from accounting.tables import event_table
from runtime.database import open_engine, write_sessions
from tests.accounting.forks import processes
from tests.accounting.ledgers import ANSWER_S, START_NS, LedgerService
from tests.accounting.sharing_gateway import CREDIT_NANO, credit, share
from tests.databases import Databases, frozen

LONG_S = 60
ENOUGH = 5


@pytest.fixture
def dsn(databases: Databases) -> Iterator[str]:
    """Only PostgreSQL is shared."""
    with databases.database("postgresql") as dsn:
        yield dsn


@dataclass
class Gateway:
    """One process, with what it has told so far."""

    process: BaseProcess
    pipe: Connection
    name: str = ""
    reported: dict[str, int] = field(default_factory=dict)

    def listen(self, is_enough: Callable[[], bool]) -> None:
        """Take in answers until there are enough; what comes after a while is a failure."""
        until_s = time.monotonic() + LONG_S
        while not is_enough():
            assert self.pipe.poll(max(0.0, until_s - time.monotonic())), "no answer came"
            key, event_seq = self.pipe.recv()
            if event_seq:
                assert self.reported.setdefault(key, event_seq) == event_seq
            else:
                self.name = key

    def goes_on(self) -> None:
        """It gets answers now, beyond those that are on their way."""
        while self.pipe.poll():
            self._hear(1)
        self._hear(ENOUGH)

    def _hear(self, more: int) -> None:
        expected = len(self.reported) + more
        self.listen(lambda: len(self.reported) >= expected)

    def signal(self, number: signal.Signals) -> None:
        assert self.process.pid
        os.kill(self.process.pid, number)

    def end(self) -> None:
        """In good order: what it had under way is answered."""
        self.pipe.send("end")
        try:
            self.listen(lambda: False)
        except EOFError:
            self.process.join(ANSWER_S)
        assert self.process.exitcode == 0

    def drain(self) -> None:
        """What a dead one had told."""
        try:
            self.listen(lambda: False)
        except EOFError:
            return


@contextmanager
def gateway(dsn: str, name: str) -> Iterator[Gateway]:
    ours, theirs = processes.Pipe()
    process = processes.Process(target=share, args=(dsn, name, theirs), daemon=True)
    process.start()
    theirs.close()
    running = Gateway(process, ours)
    try:
        running.listen(lambda: bool(running.name))
        yield running
    finally:
        process.kill()
        process.join(ANSWER_S)
        ours.close()


def _leader(engine: Engine) -> tuple[int, str]:
    with engine.connect() as connection:
        row = connection.execute(select(leader_table.c.epoch, leader_table.c.holder)).one()
    return row.epoch, row.holder


def _frozen(process: BaseProcess) -> None:
    """Wait until it has stopped itself."""
    until_s = time.monotonic() + LONG_S
    assert process.pid
    while True:
        with open(f"/proc/{process.pid}/stat") as status:  # noqa: PTH123
            if status.read().rpartition(")")[2].split()[0] == "T":
                return
        assert time.monotonic() < until_s
        time.sleep(0.02)


def test_leaders_freeze_die_and_end_and_nothing_answered_is_lost_or_doubled(dsn: str, engine: Engine) -> None:
    with ExitStack() as stack:
        started = [stack.enter_context(gateway(dsn, name)) for name in ("one", "two", "three")]
        everybody = {each.name: each for each in started}
        frozen = everybody[_leader(engine)[1]]
        others = [each for each in started if each is not frozen]

        # It stops inside of a transaction, with the epoch's row locked; what it commits later comes too late.
        frozen.pipe.send("freeze")
        _frozen(frozen.process)
        for each in others:
            each.goes_on()
        assert _leader(engine)[1] != frozen.name
        frozen.signal(signal.SIGCONT)
        for each in (frozen, *others):
            each.goes_on()

        before, leader = _leader(engine)
        killed = everybody.pop(leader)
        killed.signal(signal.SIGKILL)
        killed.drain()
        for each in everybody.values():
            each.goes_on()
        epoch, leader = _leader(engine)
        assert epoch > before

        ended = everybody.pop(leader)
        ended.end()
        (last,) = everybody.values()
        last.goes_on()
        last.end()
        _check(engine, [killed, ended, last])


def _check(engine: Engine, gateways: list[Gateway]) -> None:
    reported = {key: seq for each in gateways for key, seq in each.reported.items()}
    with engine.connect() as connection:
        rows = connection.execute(select(event_table.c.idem_key, event_table.c.seq))
        found = {row.idem_key: row.seq for row in rows}
        assert connection.scalar(select(func.max(event_table.c.seq))) == len(found)
    assert {key: found.get(key) for key in reported} == reported
    with LedgerService(engine) as ledger:
        assert ledger.balance("user:ann:paid").available_nano == CREDIT_NANO * len(found)
        assert ledger.findings() == []


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_leaders_are_lost_again_and_again(dsn: str, engine: Engine) -> None:
    """Every other one freezes inside of a transaction first, and a new gateway comes for each that is gone."""
    with ExitStack() as stack:
        names = (f"g{number}" for number in range(100))
        started = [stack.enter_context(gateway(dsn, next(names))) for _ in range(3)]
        there = {each.name: each for each in started}
        for number in range(20):
            lost = there.pop(_leader(engine)[1])
            if number % 2:
                lost.pipe.send("freeze")
                _frozen(lost.process)
            lost.signal(signal.SIGKILL)
            lost.drain()
            started.append(stack.enter_context(gateway(dsn, next(names))))
            _all_go_on(there, started[-1])
        for each in there.values():
            each.end()
        _check(engine, started)


def _all_go_on(there: dict[str, Gateway], newcomer: Gateway) -> None:
    there[newcomer.name] = newcomer
    for each in there.values():
        each.goes_on()


@pytest.mark.parametrize("losses", [2, pytest.param(40, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])])
def test_any_gateway_may_die_at_any_moment(dsn: str, engine: Engine, losses: int) -> None:
    """Followers and leaders in turn, in the middle of whatever they do; a new one comes for each."""
    chance = random.Random(losses)
    with ExitStack() as stack:
        names = (f"g{number}" for number in range(100))
        started = [stack.enter_context(gateway(dsn, next(names))) for _ in range(3)]
        there = {each.name: each for each in started}
        for number in range(losses):
            time.sleep(chance.uniform(0, 0.5))
            leader = _leader(engine)[1]
            lost = there.pop(leader if number % 2 else chance.choice(sorted(there.keys() - {leader})))
            lost.signal(signal.SIGKILL)
            lost.drain()
            started.append(stack.enter_context(gateway(dsn, next(names))))
            _all_go_on(there, started[-1])
        for each in there.values():
            each.end()
        _check(engine, started)
    dead = {each.name.rpartition("/")[2] for each in started if each not in there.values()}
    with engine.connect() as connection:
        assert set(connection.scalars(select(outbox_table.c.gateway))) <= dead


@dataclass
class Member:
    shared: SharedLedger
    poster: Poster


@contextmanager
def member(dsn: str, **arguments: Any) -> Iterator[Member]:
    engine = open_engine(dsn)
    write = write_sessions(engine)
    shared = SharedLedger(write, **arguments)
    poster = Poster(write, booking=shared)
    shared.start(poster.submit)
    poster.start()
    yield Member(shared, poster)
    assert poster.stop(ANSWER_S)
    shared.stop()
    engine.dispose()


def test_a_process_that_lost_the_lease_books_nothing_of_what_is_under_way(dsn: str, engine: Engine) -> None:
    """Another process takes the lease while a group enters its transaction: only the fence notices."""
    write = write_sessions(engine)
    is_lost = threading.Event()

    def open_session() -> Session:
        if is_lost.is_set() and threading.current_thread() is threading.main_thread():
            with engine.begin() as connection:
                connection.execute(leader_table.update().values(epoch=leader_table.c.epoch + 1, expires_ns=2**62))
        return write()

    shared = SharedLedger(open_session, patience_s=0)
    shared.start(lambda _: Future())
    try:
        assert shared.book([credit("c1")]) == [Posted(1, (1,))]
        is_lost.set()
        with pytest.raises(Deposed):
            shared.book([credit("c2")])
        assert not shared.leads
    finally:
        shared.stop()
    with engine.connect() as connection:
        assert connection.scalars(select(event_table.c.idem_key)).all() == ["credit:c1"]


def test_a_gateway_that_stops_within_a_group_closes_its_connections(dsn: str, engine: Engine) -> None:
    """Its poster was abandoned, and opens the connection when the ledger is being closed."""
    with engine.begin() as connection:
        connection.execute(leader_table.update().values(epoch=5, expires_ns=2**62))
    own = open_engine(dsn)
    write = write_sessions(own)
    is_asking, may_open = threading.Event(), threading.Event()
    errors = list[BaseException]()

    def open_session() -> Session:
        if threading.current_thread() is asking:
            is_asking.set()
            assert may_open.wait(ANSWER_S)
        return write()

    def ask() -> None:
        try:
            shared.book([credit("c1")])
        except LeaderAway as error:
            errors.append(error)

    asking = threading.Thread(target=ask)
    shared = SharedLedger(open_session, lease_s=LONG_S)
    shared.start(lambda _: Future())
    asking.start()
    assert is_asking.wait(ANSWER_S)
    stopping = threading.Thread(target=shared.stop)
    stopping.start()
    stopping.join(0.5)
    may_open.set()
    asking.join()
    stopping.join()
    assert [str(error) for error in errors] == ["the leader of the ledger has not answered"]
    with pytest.raises(LeaderAway, match="is stopping"):
        shared.book([credit("c1")])
    assert "Checked out connections: 0" in own.pool.status()
    own.dispose()


def test_a_follower_is_told_what_the_leader_was_with_all_that_errors_say(dsn: str) -> None:
    with member(dsn, lease_s=LONG_S) as leader, member(dsn, lease_s=LONG_S) as follower:
        assert (leader.shared.leads, follower.shared.leads, follower.shared.epoch) == (True, False, 1)
        there, here = (each.poster.submit(credit("c1")).result(ANSWER_S) for each in (follower, leader))
        assert (there, here) == (Posted(1, (1,)), Posted(1, (1,), replayed=True))
        short = burst.hold("r1", "ann", CREDIT_NANO + 1, START_NS)
        error = follower.poster.submit(short).exception(ANSWER_S)
        assert isinstance(error, InsufficientCredit)
        assert vars(error) == {
            "account": "user:ann:paid",
            "needed_nano": CREDIT_NANO + 1,
            "available_nano": CREDIT_NANO,
        }


_LOSE_FIRST_REPLY = """
CREATE TABLE lost ();
CREATE FUNCTION lose() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM lost) THEN
        INSERT INTO lost DEFAULT VALUES;
        DELETE FROM ledger_outbox WHERE sent_ns = NEW.sent_ns;
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER lose AFTER UPDATE ON ledger_outbox FOR EACH ROW EXECUTE FUNCTION lose();
"""


def test_a_group_that_was_booked_but_lost_its_reply_is_sent_again_and_booked_once(
    dsn: str, engine: Engine
) -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql(_LOSE_FIRST_REPLY)
    with member(dsn, lease_s=LONG_S), member(dsn, lease_s=LONG_S) as follower:
        assert follower.poster.submit(credit("c1")).result(ANSWER_S) == Posted(1, (1,), replayed=True)
    with engine.connect() as connection:
        assert connection.scalars(select(event_table.c.idem_key)).all() == ["credit:c1"]


def test_a_frozen_database_is_found_out_and_nothing_is_booked_twice_after_it(dsn: str, engine: Engine) -> None:
    with member(dsn) as leader, member(dsn) as follower:
        assert follower.poster.submit(credit("c1")).result(ANSWER_S) == Posted(1, (1,))
        with frozen(dsn):
            asked = [each.poster.submit(credit("c2")) for each in (follower, leader)]
            for future in asked:
                assert isinstance(future.exception(ANSWER_S), DatabaseFailing)
        until_s = time.monotonic() + LONG_S
        while follower.poster.submit(credit("c2")).exception(ANSWER_S):
            assert time.monotonic() < until_s
    with engine.connect() as connection:
        assert connection.scalars(select(event_table.c.idem_key)).all() == ["credit:c1", "credit:c2"]


def test_without_a_leader_that_answers_callers_are_told_within_a_bound(dsn: str, engine: Engine) -> None:
    """A gateway that answers nothing holds the leader lease."""
    with engine.begin() as connection:
        connection.execute(leader_table.update().values(epoch=5, expires_ns=2**62))
    with member(dsn, patience_s=0.3, lease_s=LONG_S) as follower:
        error = follower.poster.submit(credit("c1")).exception(ANSWER_S)
        assert isinstance(error, LeaderAway)
        with engine.begin() as connection:
            connection.execute(leader_table.update().values(expires_ns=0))
        while isinstance(follower.poster.submit(credit("c1")).exception(ANSWER_S), LeaderAway):
            pass
        assert follower.poster.submit(credit("c1")).result(ANSWER_S) == Posted(1, (1,), replayed=True)
        assert follower.shared.epoch == 6
