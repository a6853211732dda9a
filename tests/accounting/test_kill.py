"""kill -9 of the writer at each named place: nothing that was answered is lost, nothing is booked twice."""

import random
import time
from typing import get_args

import pytest
from sqlalchemy import Engine, func, select

from accounting.ledger.balances import balances
from accounting.ledger.journal import Failpoint
from accounting.ledger.postings import HOLD_GRACE_NS
from accounting.spending.lease import LEASE_NS
from accounting.spending.reaper import open_holds
from accounting.tables import event_table, usage_table
from tests.accounting.doomed_writer import COMPUTE_NANO, CREDIT_NANO, REFUND_NANO, WRITERS, credit, write
from tests.accounting.forks import processes
from tests.accounting.ledgers import ANSWER_S, LedgerService

REACH_S = 240
"""A writer that has not reached its place by then never will, however busy the machine is."""
PLACES: tuple[Failpoint, ...] = get_args(Failpoint)
KINDS = {"credit", "hold", "cap", "void", "use", "mat", "refund", "usage"}


def _answers_until_death(dsn: str, name: str, place: Failpoint | None, chance: random.Random) -> dict[str, int]:
    """Run a writer to its death and return what it told: the event number of each key."""
    receiver, sender = processes.Pipe(duplex=False)
    process = processes.Process(target=write, args=(dsn, name, place, chance.randint(1, 25), sender))
    process.start()
    sender.close()
    answers: dict[str, int] = {}
    deadline = time.monotonic() + REACH_S
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


def _told_of(ledger: LedgerService) -> dict[str, int]:
    """What the ledger knows of reported outcomes: events by their keys, requests of leases by their names."""
    with ledger.read() as session:
        events = session.execute(select(event_table.c.idem_key, event_table.c.seq))
        usages = session.execute(select("usage:" + usage_table.c.request_id, usage_table.c.event_seq))
        return {str(key): int(seq) for rows in (events, usages) for key, seq in rows}


def _count(ledger: LedgerService, kind: str) -> int:
    with ledger.read() as session:
        return session.scalar(select(func.count()).where(event_table.c.kind == kind)) or 0


def _check_after_death(engine: Engine, name: str, reported: dict[str, int]) -> int:
    """Start over on what the dead writer left, and return how many holds it had left open."""
    with LedgerService(engine) as ledger:
        found = _told_of(ledger)
        assert {key: found.get(key) for key in reported} == reported
        for key, event_seq in found.items():
            if key.startswith("credit:") and f"/{name}-" in key:
                again = ledger.post(credit(key.removeprefix("credit:")))
                assert (again.replayed, again.event_seq) == (True, event_seq)
        ledger.now_ns += LEASE_NS + HOLD_GRACE_NS
        left_open = ledger.reaper.sweep(ANSWER_S)
        assert left_open <= WRITERS
        with ledger.read() as session:
            assert open_holds(session) == []
        assert ledger.findings() == []
        _check_balances(ledger)
    return left_open


def _check_balances(ledger: LedgerService) -> None:
    """What was given to users and pool is with them, or was charged for a request that has its usage row."""
    with ledger.read() as session:
        charged = session.scalar(select(func.sum(usage_table.c.charge_nano))) or 0
        accounts = {each.code: each for each in balances(session)}
    given = CREDIT_NANO * (_count(ledger, "credit") + _count(ledger, "pool"))
    refunded = REFUND_NANO * _count(ledger, "usage_refund")
    theirs = sum(each.available_nano for code, each in accounts.items() if code.startswith(("user:", "pool:")))
    assert theirs == given - charged + refunded
    if "cu:dept:lab" in accounts:
        assert accounts["cu:dept:lab"].posted_nano == COMPUTE_NANO * _count(ledger, "use")


def _kill_often(dsn: str, engine: Engine, kills: int, seed: int) -> None:
    chance = random.Random(seed)
    reported: dict[str, int] = {}
    left_open = 0
    for number in range(kills):
        name, place = f"r{number}", (None, *PLACES)[number % (len(PLACES) + 1)]
        reported |= _answers_until_death(dsn, name, place, chance)
        left_open += _check_after_death(engine, name, reported)
    assert {key.partition(":")[0] for key in reported} >= KINDS, "something was never told: it was not tested"
    assert left_open, "no kill left a hold in doubt: the reaper was not tested"


@pytest.mark.timeout(600)
def test_killed_writers_lose_nothing_and_double_nothing(dsn: str, engine: Engine) -> None:
    _kill_often(dsn, engine, kills=9, seed=1)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_killed_writers_for_long(dsn: str, engine: Engine) -> None:
    _kill_often(dsn, engine, kills=200, seed=2)
