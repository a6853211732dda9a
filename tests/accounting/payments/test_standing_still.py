"""One row that fails, and many requests at once: no other row waits for it, and no first request fails."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import Engine, select, update

from accounting.payments.chores import Chores
from accounting.payments.errors import PaymentInvalid, PaymentNotFound, StripeUnavailable
from accounting.payments.frozen import FrozenUsers
from accounting.payments.keeper import Keeper, Schedule
from accounting.payments.payers import locked
from accounting.payments.resumption import below_threshold, go_on
from accounting.payments.tables import stripe_event_table
from accounting.payments.topups import Topups
from accounting.payments.worker import retry
from runtime.database import open_engine, write_sessions
from tests.accounting.payments.marketplace import USD, Marketplace
from tests.fakes.stripe import paying

ASKING = 6


def test_a_message_that_was_given_up_is_processed_on_request(marketplace: Marketplace) -> None:
    topup, worker = marketplace.payments.topups.open("t1", "ann", 25 * USD), marketplace.payments.worker
    marketplace.pay(topup.session_id or "")
    marketplace.stripe.webhooks.deliver(marketplace.post)
    with worker.context.write() as session, session.begin():
        session.execute(update(stripe_event_table).values(status="failed", tries=20))
        ids = session.scalars(select(stripe_event_table.c.id)).all()
    assert worker.run() == 0
    for event_id in ids:
        retry(worker.context.write, event_id, worker.context.clock_ns())
    worker.run()
    assert (marketplace.payments.topups.find("t1").status, worker.count("failed")) == ("paid", 0)
    with pytest.raises(PaymentInvalid, match="only failed webhooks"):
        retry(worker.context.write, ids[0], worker.context.clock_ns())
    with pytest.raises(PaymentNotFound):
        retry(worker.context.write, "evt_nowhere", worker.context.clock_ns())


def test_the_daily_look_finds_disputes_whose_messages_were_lost(marketplace: Marketplace) -> None:
    topup = marketplace.buy("t1")
    dispute = paying.open_dispute(marketplace.stripe.state, topup.intent_id or "")
    marketplace.stripe.webhooks.waiting.clear()
    marketplace.payments.look_for_disputes()
    assert marketplace.payments.payers.frozen_why("ann")
    paying.close_dispute(marketplace.stripe.state, dispute["id"], won=True)
    marketplace.stripe.webhooks.waiting.clear()
    marketplace.payments.look_for_disputes()
    assert marketplace.payments.payers.frozen_why("ann") is None
    marketplace.check()


def test_what_breaks_keeps_neither_those_behind_it_nor_the_day_s_work(
    marketplace: Marketplace, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    marketplace.payments.topups.open("bad", "ann", 25 * USD)
    marketplace.ledger.now_ns += 1
    good = marketplace.payments.topups.open("good", "bob", 25 * USD)
    marketplace.pay(good.session_id or "")
    marketplace.ledger.now_ns += 1
    changed = Topups.session_changed

    def breaks(topups: Topups, session_id: str) -> None:
        if session_id != good.session_id:
            raise KeyError("a field that nobody missed before")
        changed(topups, session_id)

    monkeypatch.setattr(Topups, "session_changed", breaks)
    monkeypatch.setattr(Topups, "run_auto", lambda _: [][1])
    chores = Chores(
        marketplace.ledger.read, write_sessions(engine), "one", True, lambda: marketplace.ledger.now_ns
    )
    keeper = Keeper(marketplace.payments, chores, FrozenUsers(marketplace.ledger.read), Schedule())
    keeper.look()
    assert marketplace.payments.topups.find("good").status == "paid"
    assert marketplace.payments.topups.find("bad").updated_ns == marketplace.ledger.now_ns, (
        "another one's turn next time"
    )
    assert keeper.state.reconciliation.at_ns > 0


def test_a_stripe_that_is_dead_is_asked_once() -> None:
    calls: list[str] = []
    touched: list[str] = []

    def step(name: str) -> None:
        calls.append(name)
        raise {"a": KeyError, "b": StripeUnavailable}.get(name, AssertionError)("x")

    go_on("thing", ["a", "b", "c"], step, touched.append)
    assert calls == touched == ["a", "b"]


def test_only_who_is_below_the_threshold_is_asked_for(
    marketplace: Marketplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("accounting.payments.resumption._PAGE", 2)
    marketplace.buy("t1", "rich", saves=True)
    with marketplace.payments.topups.context.write() as session, session.begin():
        for user_id, below_usd in (("a", 5), ("b", 5), ("c", None), ("d", 5), ("rich", 5)):
            locked(session, user_id).auto_below_nano = below_usd and below_usd * USD
    assert list(below_threshold(marketplace.ledger.read)) == ["a", "b", "d"]


def test_first_requests_that_come_at_once_all_go_on_with_one_row(marketplace: Marketplace, dsn: str) -> None:
    engine = open_engine(dsn, pool_size=ASKING)
    write, together = write_sessions(engine), threading.Barrier(ASKING)

    def first(_: int) -> None:
        together.wait(30)
        with write() as session, session.begin():
            locked(session, "ann").auto_failures += 1

    try:
        with ThreadPoolExecutor(ASKING) as pool:
            list(pool.map(first, range(ASKING)))
        assert marketplace.payments.payers.find("ann").auto_failures == ASKING
        with ThreadPoolExecutor(ASKING) as pool:
            made = set(pool.map(marketplace.payments.payers.customer, ["bob"] * ASKING))
        assert (len(made), marketplace.made("customer")) == (1, 1)
        with ThreadPoolExecutor(ASKING) as pool:
            list(pool.map(lambda _: marketplace.payments.sellers.attach("sam", "acct_1"), range(ASKING)))
        assert marketplace.payments.sellers.find("sam").account_id == "acct_1"
    finally:
        engine.dispose()
