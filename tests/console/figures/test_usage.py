"""Usage out of the ledger is asked for seldom, once for all who ask at the same time, and is whose it should be."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest
from sqlalchemy.orm import Session

from accounting.ledger.postings import Posting
from gateway.billing.usage_report import DAY_NS
from gateway.console.figures.usage import DAYS, UsageFigures, day_start_s
from gateway.database import open_upgraded
from gateway.identity.keys import Keys
from runtime.database import write_sessions
from tests.accounting.ledgers import START_NS, LedgerService, usage

pytestmark = pytest.mark.anyio

T = TypeVar("T")


async def test_the_ledger_is_asked_once_however_many_ask(tmp_path: Path) -> None:
    engine = open_upgraded(f"sqlite:///{tmp_path}/ledger.db")
    asked = 0
    with LedgerService(engine) as ledger:
        key = Keys(b"secret" * 6, ledger.read, write_sessions(engine)).issue("k", (), user_id="ann")
        own = {"user_id": "ann", "key_id": key.row.key_id}
        for at, (day, changes) in enumerate(
            ((0, own), (1, own), (DAYS, own), (0, {"user_id": "bob", "key_id": "b"}))
        ):
            used = usage(f"r{at}", started_ns=START_NS - day * DAY_NS, **changes)
            ledger.post(Posting(f"use:{at}", "use", f"r{at}", usages=(used,)))

        async def look(query: Callable[[Session], T]) -> T:
            nonlocal asked
            asked += 1
            await asyncio.sleep(0)
            with ledger.read() as session:
                return query(session)

        figures = UsageFigures(look, clock_ns=lambda: START_NS)
        everybody, *others = await asyncio.gather(*(figures.rows() for _ in range(5)))
        assert asked == 2
        assert all(rows == everybody for rows in others)
        # The one of thirty days ago is out of sight.
        assert [row.used.requests for row in everybody] == [1, 2]
        assert [day_start_s(row.day) for row in everybody] == [
            (START_NS // DAY_NS - ago) * 86_400 for ago in (1, 0)
        ]
        assert sum(row.used.requests for row in await figures.rows("user:ann")) == 2
        (mine,) = await figures.keys("user:ann")
        assert mine.group == (key.row.key_id,)
    engine.dispose()
