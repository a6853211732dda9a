"""Measure the rates of making and verifying blocks, in events per second, and the CPU per event."""

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

from sqlalchemy import Engine

from accounting.ledger.journal import Journal
from accounting.ledger.postings import Posting, UsageRecord
from accounting.proofs.maker import BlockMaker
from accounting.proofs.signing_key import KeyFile
from accounting.proofs.verification import verify
from accounting.rules import burst, grants, local
from gateway.database import upgrade
from runtime.database import open_engine, read_sessions, write_sessions

EVENTS = 60_000
GROUP = 128
HOLD_NS = 60 * 10**9


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench proofs", description=__doc__)
    parser.add_argument("--dsn", help="an empty database to fill; by default a temporary SQLite file")
    parser.add_argument("--events", type=int, default=EVENTS)
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="millrace-bench-") as folder:
        engine = open_engine(given.dsn or f"sqlite:///{Path(folder) / 'bench.db'}")
        try:
            upgrade(engine)
            measure(engine, Path(folder) / "ledger.key", given.events)
        finally:
            engine.dispose()


def measure(engine: Engine, key: Path, events: int) -> None:
    """Book credits, holds and local uses in turn: one transfer each, and a usage row for every third."""
    journal = Journal(write_sessions(engine), time.time_ns, lambda _: None)
    postings = _postings(events)
    while group := list(islice(postings, GROUP)):
        journal.book(group)
    read = read_sessions(engine)
    maker = BlockMaker(read, write_sessions(engine), KeyFile(key))
    # While it is stopping, it makes no pauses.
    maker.stop()
    name = engine.dialect.name
    print("| database | what | events/s | us CPU/event |")
    print("|---|---|---|---|")
    _time(name, "blocks made", events, maker.seal)
    _time(name, "verified", events, lambda: verify(read))


def _time(name: str, what: str, events: int, act: Callable[[], object]) -> None:
    began_s, cpu_s = time.perf_counter(), time.process_time()
    act()
    took_s, used_s = time.perf_counter() - began_s, time.process_time() - cpu_s
    print(f"| {name} | {what} | {events / took_s:.0f} | {1e6 * used_s / events:.1f} |")


def _postings(events: int) -> Iterator[Posting]:
    now_ns = time.time_ns()
    for number in range(events):
        user = f"u{number // 3 % 50}"
        if number % 3 == 0:
            yield grants.manual_credit(f"c{number}", user, 1_000, "bench")
        elif number % 3 == 1:
            yield burst.hold(f"r{number}", user, 700, now_ns + HOLD_NS)
        else:
            yield local.local_use(_usage(number, now_ns))


def _usage(number: int, now_ns: int) -> UsageRecord:
    return UsageRecord(
        request_id=f"r{number:09d}",
        user_id="ann",
        department="lab",
        key_id="key",
        model="demo",
        lane="cluster",
        provider="",
        prompt_tokens=120,
        cached_tokens=0,
        completion_tokens=40,
        count_source="tokenizer",
        outcome="complete",
        started_ns=now_ns,
        duration_ms=850,
        ttft_ms=40,
        compute_nano=7,
    )
