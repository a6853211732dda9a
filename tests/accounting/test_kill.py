"""kill -9 of the writer at each named place: nothing that was answered is lost, nothing is booked twice."""

import multiprocessing
import random
import time
from typing import get_args

import pytest
from sqlalchemy import Engine, func, select

from accounting.ledger.journal import Failpoint
from accounting.spending.reaper import open_holds
from accounting.tables import event_table
from tests.accounting.books import ANSWER_S, MINUTE_NS, Books
from tests.accounting.doomed_writer import BILL, COMPUTE_NANO, CREDIT_NANO, WRITERS, credit, write

PLACES: tuple[Failpoint, ...] = get_args(Failpoint)

# Forks from a server that has imported everything and has no threads: fast, and safe.
processes = multiprocessing.get_context("forkserver")
processes.set_forkserver_preload(["tests.accounting.doomed_writer"])


def _answers_until_death(dsn: str, name: str, place: Failpoint | None, chance: random.Random) -> dict[str, int]:
    """Run a writer to its death and return what it told: the event number of each key."""
    receiver, sender = processes.Pipe(duplex=False)
    process = processes.Process(target=write, args=(dsn, name, place, chance.randint(1, 25), sender))
    process.start()
    sender.close()
    answers: dict[str, int] = {}
    deadline = time.monotonic() + ANSWER_S
    doomed_at = chance.randint(1, 60) if place is None else None
    try:
        while receiver.poll(deadline - time.monotonic()):
            key, event_seq = receiver.recv()
            answers[key] = event_seq
            if len(answers) == doomed_at:
                process.kill()
    except EOFError:
        process.join(ANSWER_S)
        assert process.exitcode == -9
        return answers
    finally:
        process.kill()
        receiver.close()
    raise AssertionError(f"the writer did not reach {place}")


def _events(books: Books) -> dict[str, int]:
    with books.read() as session:
        rows = session.execute(select(event_table.c.idem_key, event_table.c.seq))
        return {row.idem_key: row.seq for row in rows}


def _count(books: Books, kind: str) -> int:
    with books.read() as session:
        return session.scalar(select(func.count()).where(event_table.c.kind == kind)) or 0


def _check_after_death(engine: Engine, name: str, told: dict[str, int]) -> int:
    """Start over on what the dead writer left, and return how many holds it had left open."""
    with Books(engine) as books:
        found = _events(books)
        assert {key: found.get(key) for key in told} == told
        for key, event_seq in found.items():
            if key.startswith(f"credit:{name}-"):
                again = books.post(credit(key.removeprefix("credit:")))
                assert (again.replayed, again.event_seq) == (True, event_seq)
        books.now_ns += 2 * MINUTE_NS
        left_open = books.reaper.sweep(ANSWER_S)
        assert left_open <= WRITERS
        with books.read() as session:
            assert open_holds(session) == []
        assert books.findings() == []
        _check_balances(books)
    return left_open


def _check_balances(books: Books) -> None:
    captures, uses = _count(books, "capture"), _count(books, "use")
    expected = {
        "user:ann:paid": CREDIT_NANO * _count(books, "credit") - BILL.charge_nano * captures,
        "provider:acme:accrued": BILL.cost_nano * captures,
        "income:burst_margin": (BILL.charge_nano - BILL.cost_nano) * captures,
        "cu:dept:lab": COMPUTE_NANO * uses,
    }
    assert {code: books.balance(code).available_nano for code in expected} == expected


def _kill_often(dsn: str, engine: Engine, kills: int, seed: int) -> None:
    chance = random.Random(seed)
    told: dict[str, int] = {}
    left_open = 0
    for number in range(kills):
        name, place = f"r{number}", (None, *PLACES)[number % (len(PLACES) + 1)]
        told |= _answers_until_death(dsn, name, place, chance)
        left_open += _check_after_death(engine, name, told)
    assert told, "every writer died before it could answer: nothing was tested"
    assert left_open, "no kill left a hold in doubt: the reaper was not tested"


def test_killed_writers_lose_nothing_and_double_nothing(dsn: str, engine: Engine) -> None:
    _kill_often(dsn, engine, kills=12, seed=1)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_killed_writers_for_long(dsn: str, engine: Engine) -> None:
    _kill_often(dsn, engine, kills=200, seed=2)
