"""Running sums of what was used: the same as a sum of all usage rows, for the work of one look."""

import time
from typing import Any

import pytest
from sqlalchemy import event

from accounting.ledger.postings import UsageRecord
from accounting.rules import local
from gateway.limits.counters import CounterKey
from gateway.limits.past_use import used_since
from gateway.limits.windows import window
from runtime.database import open_engine, read_sessions
from tests.accounting.ledgers import LedgerService, usage
from tests.databases import Databases

NOW_S = int(time.time())
MONTH_S = window("month", NOW_S)[0]


def _used(number: int, at_s: float, **fields: Any) -> UsageRecord:
    row = {"user_id": "owner", "key_id": "k1", "model": "m", "started_ns": int(at_s * 10**9)}
    return usage(f"r{number:06}", **row | fields)


@pytest.mark.parametrize("scope", ["key:k1", "user:owner", "team:home/home", "organization:home"])
def test_a_look_is_the_same_work_however_much_was_used(databases: Databases, scope: str) -> None:
    key, steps = CounterKey(scope, "requests", "month", None), {}
    with databases.database("sqlite") as dsn:
        engine = open_engine(dsn)
        counted: list[int] = []
        event.listen(
            engine, "connect", lambda connection, _: connection.set_progress_handler(lambda: counted.append(1), 1)
        )
        read = used_since(read_sessions(engine))
        done = 0
        for rows in (10, 4_000):
            with LedgerService(engine) as ledger:
                while done < rows:
                    some = range(done, min(rows, done + 500))
                    ledger.post(local.local_uses([_used(number, NOW_S, department="home") for number in some]))
                    done = some.stop
            counted.clear()
            assert read(key, MONTH_S, None) == rows
            steps[rows] = len(counted)
        engine.dispose()
    assert steps[4_000] <= 2 * steps[10]
