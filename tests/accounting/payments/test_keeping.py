"""What payments do now and then: by one gateway of several, once a day, and nothing of it is kept for ever."""

from collections.abc import Callable

import pytest
from sqlalchemy import Engine, func, select, update

from accounting.payments.chores import Chores
from accounting.payments.errors import WrongAccount, WrongMode
from accounting.payments.frozen import FrozenUsers
from accounting.payments.keeper import Keeper, Schedule, purge
from accounting.payments.mode import keep_account, keep_mode
from accounting.payments.status_report import status_report
from accounting.payments.tables import stripe_call_table, stripe_event_table
from accounting.rules import debts
from accounting.rules.corrections import correction
from runtime.database import write_sessions
from tests.accounting.payments.marketplace import HOUR_NS, USD, Marketplace

DAY_NS = 24 * HOUR_NS


def chores_of(marketplace: Marketplace, engine: Engine, holder: str, *, is_alone: bool = False) -> Chores:
    return Chores(
        marketplace.ledger.read, write_sessions(engine), holder, is_alone, lambda: marketplace.ledger.now_ns
    )


@pytest.fixture
def keeper(marketplace: Marketplace, engine: Engine) -> Callable[[str, Schedule], Keeper]:
    def keeper(holder: str, schedule: Schedule) -> Keeper:
        return Keeper(
            marketplace.payments,
            chores_of(marketplace, engine, holder),
            FrozenUsers(marketplace.ledger.read),
            schedule,
        )

    return keeper


def test_a_chore_is_one_s_until_its_time_is_over(marketplace: Marketplace, engine: Engine) -> None:
    one, other = chores_of(marketplace, engine, "one"), chores_of(marketplace, engine, "other")
    assert one.take("tick", 60)
    assert (other.take("tick", 60), one.take("tick", 60)) == (False, True)
    assert chores_of(marketplace, engine, "alone", is_alone=True).take("tick", 60)
    marketplace.ledger.now_ns += 61 * 10**9
    assert other.take("tick", 60)
    other.done("tick", {"said": 1})
    assert (one.last("tick").note, one.last("nothing").at_ns) == ({"said": 1}, 0)
    assert one.take("tick", 60)


def test_the_daily_work_is_done_once_by_one_gateway(
    marketplace: Marketplace, keeper: Callable[[str, Schedule], Keeper]
) -> None:
    marketplace.funds(1_000)
    marketplace.seller("sam", 300 * USD)
    one, other = (keeper(name, Schedule(payouts="daily")) for name in ("one", "other"))
    for _ in range(3):
        one.look()
        other.look()
    assert (marketplace.made("transfer"), marketplace.balance("seller:sam:payable")) == (1, 0)
    first = one.state.reconciliation
    assert (first == other.state.reconciliation, first.note["unmatched_count"]) == (True, 0)
    marketplace.ledger.now_ns += DAY_NS
    other.look()
    assert other.state.reconciliation.at_ns > first.at_ns
    assert marketplace.made("transfer") == 1, "nothing is payable any more"


def test_a_reconciliation_that_another_gateway_died_of_is_done_by_the_next(
    marketplace: Marketplace, keeper: Callable[[str, Schedule], Keeper], engine: Engine
) -> None:
    one = keeper("one", Schedule())
    chores = chores_of(marketplace, engine, "other")
    assert chores.take("reconciliation", 600), "another gateway is at it"
    one.look()
    assert one.state.reconciliation.at_ns == 0
    marketplace.ledger.now_ns += 601 * 10**9
    one.look()
    assert one.state.reconciliation.at_ns > 0


def test_what_is_done_with_is_forgotten_after_its_time(marketplace: Marketplace, engine: Engine) -> None:
    marketplace.buy("t1")
    write = write_sessions(engine)
    with write() as session, session.begin():
        first = select(stripe_event_table.c.id).limit(1).scalar_subquery()
        failed = update(stripe_event_table).where(stripe_event_table.c.id == first)
        session.execute(failed.values(status="failed", reason="test"))
    assert purge(write, marketplace.ledger.now_ns - 90 * DAY_NS) == 0
    marketplace.ledger.now_ns += 91 * DAY_NS
    assert purge(write, marketplace.ledger.now_ns - 90 * DAY_NS) > 0
    with marketplace.ledger.read() as session:
        left = session.scalar(select(func.count()).select_from(stripe_event_table))
        assert (left, session.scalar(select(func.count()).select_from(stripe_call_table))) == (1, 0)
        facts = status_report(session)
    assert (facts["failed"], [each["reason"] for each in facts["failures"]]) == (1, ["test"])
    marketplace.check()


def test_a_top_up_settles_what_the_user_owes_once(marketplace: Marketplace) -> None:
    marketplace.ledger.post(correction("debt", "asset:user_recv:ann", "asset:bank", 7 * USD))
    marketplace.buy("t1")
    assert (marketplace.balance("asset:user_recv:ann"), marketplace.balance("user:ann:paid")) == (0, 18 * USD)
    marketplace.ledger.post(correction("debt2", "asset:user_recv:ann", "asset:bank", 2 * USD))
    for delivery in marketplace.stripe.webhooks.delivered:
        marketplace.stripe.webhooks.post(delivery, marketplace.post)
    intent_id = marketplace.payments.topups.find("t1").intent_id or ""
    marketplace.payments.topups.intent_changed(intent_id)
    assert marketplace.balance("asset:user_recv:ann") == 2 * USD, "an old payment pays no new debt"
    marketplace.payments.topups.context.ledger.settle_debt(f"stripe:{intent_id}", "ann")
    assert marketplace.balance("asset:user_recv:ann") == 2 * USD
    assert debts.settled("x", "ann", 0, 5).legs == ()
    marketplace.check()


def test_a_ledger_of_play_money_takes_no_real_money(marketplace: Marketplace, engine: Engine) -> None:
    write = write_sessions(engine)
    keep_mode(write, is_live=True)
    keep_mode(write, is_live=False)
    keep_account(write, "acct_1")
    keep_account(write, "acct_2")
    marketplace.payments.payers.customer("ann")
    keep_mode(write, is_live=False)
    keep_account(write, "acct_2")
    with pytest.raises(WrongMode, match="holds payments of test mode"):
        keep_mode(write, is_live=True)
    with pytest.raises(WrongAccount, match="account acct_2, and the key is of acct_1"):
        keep_account(write, "acct_1")


def test_a_key_of_another_account_moves_nothing(
    marketplace: Marketplace, keeper: Callable[[str, Schedule], Keeper], engine: Engine
) -> None:
    keep_account(write_sessions(engine), "acct_of_before")
    topup = marketplace.payments.topups.open("t1", "ann", 25 * USD)
    marketplace.pay(topup.session_id or "")
    one = keeper("one", Schedule())
    one.look()
    assert (str(one.wrong), marketplace.payments.topups.find("t1").status) == (
        "this ledger holds payments of account acct_of_before, and the key is of acct_own",
        "open",
    )


def test_who_is_frozen_is_known_after_a_look(marketplace: Marketplace) -> None:
    frozen = FrozenUsers(marketplace.ledger.read)
    marketplace.payments.payers.freeze("ann", "dispute dp_1")
    assert frozen.why("ann") is None
    frozen.look()
    assert (frozen.why("ann"), frozen.why("bob")) == ("dispute dp_1", None)
    marketplace.payments.payers.freeze("ann", None)
    frozen.look()
    assert frozen.why("ann") is None
