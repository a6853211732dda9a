"""Measure many clients that buy at once from one payer's credits, with one fee account: events per second, and
times.

A purchase is two events: a hold, and the capture that pays the seller and our fee. Each client waits for the first
before it sends the second, as a request does.
"""

import functools
import itertools
import multiprocessing
import operator
import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection

from sqlalchemy import Engine

from accounting import chart
from accounting.ledger.health import findings
from accounting.ledger.poster import Poster
from accounting.replication.shared import SharedLedger
from accounting.rules import grants, market
from accounting.rules.parts import HeldPart, Share
from bench.row_locking import RowLocking
from runtime.database import open_engine, read_sessions, write_sessions

CHARGE_NANO = 1_000
FEE_BPS = 500
FEE_NANO = CHARGE_NANO * FEE_BPS // market.BPS
PAYER = chart.user_paid("hot")
ANSWER_S = 60.0
CREDITS = 100
TURNS = 3

Purchase = Callable[[str, int, Callable[[float], None]], None]
"""Buys under a name from the seller of a number, and reports how long each event took."""


@dataclass(frozen=True, slots=True)
class Figures:
    """The result of a run: the time of each event, and of all together."""

    each_ms: Sequence[float]
    took_s: float

    @property
    def events(self) -> int:
        return len(self.each_ms)

    @property
    def events_per_s(self) -> float:
        return self.events / self.took_s

    def __add__(self, other: "Figures") -> "Figures":
        return Figures([*self.each_ms, *other.each_ms], self.took_s + other.took_s)


def measure(name: str, engine: Engine, clients: int, seconds: float) -> None:
    """Print our figures.

    On PostgreSQL, plain row locking is measured in alternation, and then a gateway that follows another one.
    """
    each_s = seconds / TURNS
    own, others = list[Figures](), list[Figures]()
    with ExitStack() as stack:
        purchase = stack.enter_context(our_purchases(engine))
        plain = (
            stack.enter_context(closing(RowLocking(engine, CHARGE_NANO, FEE_NANO))) if _is_shared(engine) else None
        )
        for turn in range(TURNS):
            own.append(run(purchase, clients, each_s, f"turn{turn}"))
            if plain:
                others.append(run(plain.purchase, clients, each_s, f"turn{turn}"))
        assert plain is None or plain.is_sound()
    check(engine)
    _print(name, "Millrace", clients, own)
    if others:
        _print(name, "row locking", clients, others)
        ratios = [mine.events_per_s / other.events_per_s for mine, other in zip(own, others, strict=True)]
        range_ = f"{min(ratios):.1f}-{max(ratios):.1f}"
        print(f"| {name} | over row locking | {clients} | {statistics.median(ratios):.1f}x ({range_}) | | | |")
    if _is_shared(engine):
        with leader_elsewhere(engine), our_purchases(engine) as purchase:
            following = [run(purchase, clients, each_s, f"following{turn}") for turn in range(TURNS)]
        check(engine)
        _print(name, "Millrace, through another gateway", clients, following)


@contextmanager
def our_purchases(engine: Engine) -> Iterator[Purchase]:
    """Yield a purchase through the one writer, for a payer with enough credits."""
    with _poster(engine) as poster:
        for number in range(CREDITS):
            credit = grants.manual_credit(f"hot-{number}", "hot", 10**15, "bench")
            poster.submit(credit).result(ANSWER_S)

        def purchase(request: str, seller: int, timed: Callable[[float], None]) -> None:
            began_s = time.perf_counter()
            hold = market.hold(request, [Share(PAYER, CHARGE_NANO)], 2**62)
            (pending_seq,) = poster.submit(hold).result(ANSWER_S).transfer_seqs
            timed((held_s := time.perf_counter()) - began_s)
            order = market.PurchaseHold(request, (HeldPart(PAYER, CHARGE_NANO, pending_seq),))
            sale = market.SellerBill(f"seller-{seller}", CHARGE_NANO, FEE_BPS)
            poster.submit(market.capture(order, sale)).result(ANSWER_S)
            timed(time.perf_counter() - held_s)

        yield purchase


def check(engine: Engine) -> None:
    """Fail unless every rule of the ledger holds, overdrafts and sums included."""
    if _is_shared(engine):
        # Autovacuum does this within a minute: queries on tables that were just empty have no good plans.
        with engine.begin() as connection:
            connection.exec_driver_sql("ANALYZE")
    with read_sessions(engine)() as session:
        broken = findings(session, time.time_ns())
    assert not broken, broken


def run(purchase: Purchase, clients: int, seconds: float, name: str) -> Figures:
    """Have every client buy, one purchase after the other, until the time is over."""
    times_s: list[list[float]] = [[] for _ in range(clients)]
    errors: list[BaseException] = []
    starting, until_s = threading.Barrier(clients), time.perf_counter() + seconds

    def buy(client: int) -> None:
        starting.wait()
        try:
            for number in itertools.count():
                purchase(f"{name}-{client}-{number}", client, times_s[client].append)
                if time.perf_counter() > until_s:
                    return
        except BaseException as error:
            errors.append(error)
            raise

    threads = [threading.Thread(target=buy, args=(client,)) for client in range(clients)]
    began_s = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took_s = time.perf_counter() - began_s
    assert not errors, errors[0]
    return Figures([1000 * each_s for each in times_s for each_s in each], took_s)


@contextmanager
def _poster(engine: Engine) -> Iterator[Poster]:
    """Run the writer as a gateway does: on PostgreSQL with the leader's fence in every transaction."""
    write = write_sessions(engine)
    shared = SharedLedger(write) if _is_shared(engine) else None
    poster = Poster(write, booking=shared)
    if shared:
        shared.start(poster.submit)
    poster.start()
    try:
        yield poster
    finally:
        poster.stop(ANSWER_S)
        if shared:
            shared.stop()


@contextmanager
def leader_elsewhere(engine: Engine) -> Iterator[None]:
    """Have another process lead the ledger."""
    processes = multiprocessing.get_context("spawn")
    ours, others = processes.Pipe()
    dsn = engine.url.render_as_string(hide_password=False)
    leader = processes.Process(target=_lead, args=(dsn, others), daemon=True)
    leader.start()
    # So that `recv` ends if the process dies.
    others.close()
    try:
        ours.recv()
        yield
    finally:
        ours.send("end")
        leader.join(ANSWER_S)


def _lead(dsn: str, answers: Connection) -> None:
    engine = open_engine(dsn)
    with _poster(engine) as poster:
        poster.submit(grants.manual_credit("leader", "leader", 1, "bench")).result(ANSWER_S)
        answers.send("leads")
        answers.recv()
    engine.dispose()


def _is_shared(engine: Engine) -> bool:
    return engine.dialect.name == "postgresql"


def _print(name: str, what: str, clients: int, turns: Sequence[Figures]) -> None:
    all_ = functools.reduce(operator.add, turns)
    each_ms = sorted(all_.each_ms)
    numbers = (
        f"{all_.events_per_s:.0f} | {each_ms[len(each_ms) // 2]:.1f} | {each_ms[len(each_ms) * 99 // 100]:.1f}"
    )
    print(f"| {name} | {what} | {clients} | {numbers} | {os.getloadavg()[0]:.1f} |", flush=True)
