"""What payments do now and then: by one gateway of several, once a day, and nothing of it is kept for ever."""

from collections.abc import Callable

import pytest
from sqlalchemy import Engine, func, select, update

from accounting.payments.chores import Chores
from accounting.payments.errors import WrongAccount, WrongMode
from accounting.payments.frozen import FrozenUsers
from accounting.payments.keeper import Keeper, Schedule
from accounting.payments.mode import keep_account, keep_mode
from accounting.payments.purge import purge
from accounting.payments.status_report import status_report
from accounting.payments.tables import stripe_call_table, stripe_event_table
from accounting.rules import debts
from accounting.rules.corrections import correction
from runtime.database import write_sessions
from tests.accounting.payments.house import HOUR_NS, USD, Marketplace

DAY_NS = 24 * HOUR_NS


def chores_of(house: Marketplace, engine: Engine, holder: str, *, is_alone: bool = False) -> Chores:
    return Chores(house.ledger.read, write_sessions(engine), holder, is_alone, lambda: house.ledger.now_ns)


@pytest.fixture
def keeper(house: Marketplace, engine: Engine) -> Callable[[str, Schedule], Keeper]:
    def keeper(holder: str, schedule: Schedule) -> Keeper:
        return Keeper(house.payments, chores_of(house, engine, holder), FrozenUsers(house.ledger.read), schedule)

    return keeper


def test_a_chore_is_one_s_until_its_time_is_over(house: Marketplace, engine: Engine) -> None:
    one, other = chores_of(house, engine, "one"), chores_of(house, engine, "other")
    assert one.take("tick", 60)
    assert (other.take("tick", 60), one.take("tick", 60)) == (False, True)
    assert chores_of(house, engine, "alone", is_alone=True).take("tick", 60)
    house.ledger.now_ns += 61 * 10**9
    assert other.take("tick", 60)
    other.done("tick", {"said": 1})
    assert (one.last("tick").note, one.last("nothing").at_ns) == ({"said": 1}, 0)
    assert one.take("tick", 60)


def test_the_day_s_work_is_done_once_by_whoever_s_turn_it_is(
    house: Marketplace, keeper: Callable[[str, Schedule], Keeper]
) -> None:
    house.funds(1_000)
    house.seller("sam", 300 * USD)
    one, other = (keeper(name, Schedule(payouts="daily")) for name in ("one", "other"))
    for _ in range(3):
        one.look()
        other.look()
    assert (house.made("transfer"), house.balance("seller:sam:payable")) == (1, 0)
    first = one.state.reconciliation
    assert (first == other.state.reconciliation, first.note["unmatched_count"]) == (True, 0)
    house.ledger.now_ns += DAY_NS
    other.look()
    assert other.state.reconciliation.at_ns > first.at_ns
    assert house.made("transfer") == 1, "nothing is payable any more"


def test_a_reconciliation_that_another_gateway_died_of_is_done_by_the_next(
    house: Marketplace, keeper: Callable[[str, Schedule], Keeper], engine: Engine
) -> None:
    one = keeper("one", Schedule())
    chores = chores_of(house, engine, "other")
    assert chores.take("reconciliation", 600), "another gateway is at it"
    one.look()
    assert one.state.reconciliation.at_ns == 0
    house.ledger.now_ns += 601 * 10**9
    one.look()
    assert one.state.reconciliation.at_ns > 0


def test_what_is_done_with_is_forgotten_after_its_time(house: Marketplace, engine: Engine) -> None:
    house.buy("t1")
    write = write_sessions(engine)
    with write() as session, session.begin():
        first = select(stripe_event_table.c.id).limit(1).scalar_subquery()
        failed = update(stripe_event_table).where(stripe_event_table.c.id == first)
        session.execute(failed.values(status="failed", reason="test"))
    assert purge(write, house.ledger.now_ns - 90 * DAY_NS) == 0
    house.ledger.now_ns += 91 * DAY_NS
    assert purge(write, house.ledger.now_ns - 90 * DAY_NS) > 0
    with house.ledger.read() as session:
        left = session.scalar(select(func.count()).select_from(stripe_event_table))
        assert (left, session.scalar(select(func.count()).select_from(stripe_call_table))) == (1, 0)
        facts = status_report(session)
    assert (facts["failed"], [each["reason"] for each in facts["failures"]]) == (1, ["test"])
    house.check()


def test_a_top_up_settles_what_the_user_owes_once(house: Marketplace) -> None:
    house.ledger.post(correction("debt", "asset:user_recv:ann", "asset:bank", 7 * USD))
    house.buy("t1")
    assert (house.balance("asset:user_recv:ann"), house.balance("user:ann:paid")) == (0, 18 * USD)
    house.ledger.post(correction("debt2", "asset:user_recv:ann", "asset:bank", 2 * USD))
    for delivery in house.stripe.webhooks.delivered:
        house.stripe.webhooks.post(delivery, house.post)
    intent_id = house.payments.topups.find("t1").intent_id or ""
    house.payments.topups.intent_changed(intent_id)
    assert house.balance("asset:user_recv:ann") == 2 * USD, "an old payment pays no new debt"
    house.payments.topups.context.ledger.settle_debt(f"stripe:{intent_id}", "ann")
    assert house.balance("asset:user_recv:ann") == 2 * USD
    assert debts.settled("x", "ann", 0, 5).legs == ()
    house.check()


def test_books_of_play_money_take_no_real_money(house: Marketplace, engine: Engine) -> None:
    write = write_sessions(engine)
    keep_mode(write, is_live=True)
    keep_mode(write, is_live=False)
    keep_account(write, "acct_1")
    keep_account(write, "acct_2")
    house.payments.payers.customer("ann")
    keep_mode(write, is_live=False)
    keep_account(write, "acct_2")
    with pytest.raises(WrongMode, match="holds payments of test mode"):
        keep_mode(write, is_live=True)
    with pytest.raises(WrongAccount, match="account acct_2, and the key is of acct_1"):
        keep_account(write, "acct_1")


def test_a_key_of_another_account_moves_nothing(
    house: Marketplace, keeper: Callable[[str, Schedule], Keeper], engine: Engine
) -> None:
    keep_account(write_sessions(engine), "acct_of_before")
    topup = house.payments.topups.open("t1", "ann", 25 * USD)
    house.pay(topup.session_id or "")
    one = keeper("one", Schedule())
    one.look()
    assert (str(one.wrong), house.payments.topups.find("t1").status) == (
        "this ledger holds payments of account acct_of_before, and the key is of acct_house",
        "open",
    )


def test_who_is_frozen_is_known_after_a_look(house: Marketplace) -> None:
    frozen = FrozenUsers(house.ledger.read)
    house.payments.payers.freeze("ann", "dispute dp_1")
    assert frozen.why("ann") is None
    frozen.look()
    assert (frozen.why("ann"), frozen.why("bob")) == ("dispute dp_1", None)
    house.payments.payers.freeze("ann", None)
    frozen.look()
    assert frozen.why("ann") is None
