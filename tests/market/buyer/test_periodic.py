"""What the buyer does beside its answers: it outlives a disk that refuses, and what is long over is forgotten."""

import asyncio
import sqlite3
import time
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy.exc import OperationalError

from market.buyer.lines import Lines
from market.buyer.sellers import SellerTracker
from market.buyer.server import again
from market.buyer.store import KEPT_MS, BegunJob, BuyingStore, EndedJob
from market.credit_lines.balance import Balances
from market.credit_lines.partners import Partners
from market.network.record_keeper import KeeperPolicy, RecordKeeper
from market.protocol.channels.terms import LANES_MAX
from tests.databases import refusing
from tests.market.credit_lines.test_texts import Pair
from tests.market.parties import NOW_MS

pytestmark = pytest.mark.anyio

LATER_MS = KEPT_MS + 1000


async def test_a_write_that_fails_is_made_up_for(tmp_path: Path) -> None:
    path = tmp_path / "buying.db"
    store = BuyingStore(path)
    sellers = SellerTracker(store)
    keeping = asyncio.create_task(again("tracks", 0.01, partial(asyncio.to_thread, sellers.keep)))
    with refusing(path, "track"):
        sellers.answered("ann", "mill", 4, 0.1, 50)
        with pytest.raises(OperationalError):
            sellers.keep()
        await asyncio.sleep(0.1)
    async with asyncio.timeout(60):
        while not store.tracks():
            await asyncio.sleep(0.01)
    assert [(row.seller, row.tokens) for row in store.tracks()] == [("ann", 50)]
    assert not keeping.done()
    keeping.cancel()
    store.close()


async def test_lines_are_read_again_after_a_disk_that_refuses(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    pair.befriended()
    folder, own = tmp_path / "ann", pair.owns[0]
    store = BuyingStore(folder / "buying.db")
    keeper = RecordKeeper(folder / "known.db", lambda: NOW_MS, KeeperPolicy(allows_loopback=True))
    lines = Lines(Partners(folder, own), Balances(folder), own, store, keeper)
    with refusing(folder / "buying.db", "job"):
        await lines.refresh()
        assert lines.all() == []
    await lines.refresh()
    assert [state.terms.seller for state in lines.all()] == [pair.owns[1].id]
    keeper.close()
    store.close()


def bought(store: BuyingStore, channel: str, lane: int, seq: int, receipt: bytes | None = b"r") -> BegunJob:
    begun = BegunJob(channel, lane, seq, f"req-{channel}-{lane}-{seq}", "mill", 9, b"voucher")
    store.begin(begun)
    if receipt:
        store.end(begun, EndedJob(receipt, None, 5, ""))
    return begun


def test_what_is_long_over_is_forgotten_and_of_a_line_all_but_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line has no end that we know of: its newest receipts are what is owed on it."""
    monkeypatch.setattr("market.buyer.store.PRUNED_AT_ONCE", 2)
    store, now_ms = BuyingStore(tmp_path / "buying.db"), time.time_ns() // 10**6
    credit = {"seller": "s", "buyer": "b", "backing": "x", "records": b"", "limit_nano": 9}
    for channel, expires_ms in (("ended", now_ms), ("running", now_ms + LATER_MS)):
        store.add_channel(id=channel, expires_ms=expires_ms, **credit)
    begun = [bought(store, channel, 0, seq) for channel in ("ended", "running") for seq in (1, 2)]
    begun += [bought(store, "line", lane, seq) for lane in (2, LANES_MAX - 1) for seq in (1, 2, 3)]
    begun += [bought(store, "line", 0, seq, receipt) for seq, receipt in ((2, b"r"), (3, b"r"), (4, None))]
    store.forget_owed([each.request_id for each in begun])
    bought(store, "line", 0, 1)
    store.prune(now_ms)
    assert {each: len(store.jobs(each)) for each in ("ended", "running", "line")} == {
        "ended": 2,
        "running": 2,
        "line": 10,
    }
    store.prune(now_ms + LATER_MS)
    left = [(job.lane, job.seq) for job in store.jobs("line")]
    assert left == [(0, 1), (0, 3), (0, 4), (2, 3), (LANES_MAX - 1, 3)], "what is not booked stays"
    assert (len(store.jobs("ended")), len(store.jobs("running"))) == (0, 2)
    assert [row.id for row in store.channels(0)] == ["running"]
    assert [row.channel for row in store.unsubmitted("", 9)] == ["running"]
    store.close()


def test_what_audits_of_an_older_database_cost_is_still_owed(tmp_path: Path) -> None:
    """It listed the audits that were booked, not those that were not."""
    path, credit = tmp_path / "buying.db", {"buyer": "b", "backing": "x", "records": b"", "limit_nano": 9}
    store = BuyingStore(path)
    store.add_channel(id="c", seller="ann", expires_ms=time.time_ns() // 10**6, **credit)
    for seq, request_id in enumerate(("audit-booked", "audit-lacking", "req-booked")):
        begun = BegunJob("c", 0, seq, request_id, "mill", 9, b"voucher")
        store.begin(begun)
        store.end(begun, EndedJob(b"r", None, 5, ""))
    store.close()
    with closing(sqlite3.connect(path)) as older, older:
        older.execute("DELETE FROM unbooked_request")
        older.execute("CREATE TABLE booked_audit (request_id TEXT PRIMARY KEY)")
        older.execute("INSERT INTO booked_audit VALUES ('audit-booked')")
    for _ in range(2):
        store = BuyingStore(path)
        assert [(owed.id, owed.amount_nano, owed.seller) for owed in store.owed("", (), 9, NOW_MS)] == [
            ("audit-lacking", 5, "ann")
        ]
        store.close()
