"""Prices over time: every charge can be reckoned again, and own machines' work costs what it did then."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.exc import IntegrityError

from accounting.metering.own_cost import CostTerms, rates, work_nano
from accounting.metering.prices import LongContext, PricedModel
from accounting.metering.recharge import Mischarge, mischarges
from accounting.metering.usage import usage_totals
from accounting.metering.versions import price_of, record, version_at, versions_now, versions_of
from accounting.money import NANO_PER_USD, Price
from accounting.rules import local
from accounting.rules.held import CloudBill
from runtime.database import write_sessions
from tests.accounting.ledgers import ANSWER_S, START_NS, LedgerService, usage

DAY_NS = 86_400 * 10**9
DEAR = LongContext(1_000, Price(40, 20, 80))
FIRST = PricedModel("cloud", "acme/fast", "list-1", Price(20, 10, 40, 50), "acme", long_context=DEAR)
SECOND = replace(FIRST, source="list-2", price=Price(30, 15, 60))


def write(engine: Engine, prices: Mapping[str, PricedModel], at_ns: int) -> int:
    with write_sessions(engine)() as session, session.begin():
        return record(session, prices, at_ns)


def test_a_version_is_written_where_the_price_differs_and_found_by_its_time(
    ledger: LedgerService, engine: Engine
) -> None:
    assert write(engine, {"fast": FIRST, "second": FIRST}, START_NS) == 2
    # Another list that says the same is no other price, and limits are none at all.
    assert write(engine, {"fast": replace(FIRST, source="list-1b", max_output_tokens=7)}, START_NS + 1) == 0
    assert write(engine, {"fast": SECOND}, START_NS + DAY_NS) == 1
    assert write(engine, {"fast": FIRST}, START_NS + 2 * DAY_NS) == 1
    with ledger.read() as session:
        found = [version_at(session, "cloud", "fast", START_NS + days * DAY_NS) for days in (0, 1, 3)]
        assert [each and each.priced for each in found] == [FIRST, SECOND, FIRST]
        assert version_at(session, "cloud", "fast", START_NS - 1) is None
        assert version_at(session, "pool", "fast", START_NS) is None
        assert [each.priced.source for each in versions_of(session, "fast")] == ["list-1", "list-2", "list-1"]
        now = [(each.name, each.priced) for each in versions_now(session, START_NS + DAY_NS)]
        assert now == [("fast", SECOND), ("second", FIRST)]
        assert price_of(session, SECOND.id) == replace(SECOND, source="")
        assert price_of(session, "price-0") is None


def test_what_was_charged_by_is_never_changed(ledger: LedgerService, engine: Engine) -> None:
    write(engine, {"fast": FIRST}, START_NS)
    for statement in (
        "UPDATE price SET prompt_nano = 0",
        "DELETE FROM price_version",
        "UPDATE price_version SET valid_from_ns = 0",
        "INSERT INTO price_version VALUES ('cloud', 'fast', 1, 'price-0', '')",
    ):
        with pytest.raises(IntegrityError), write_sessions(engine)() as session, session.begin():
            session.execute(text(statement))


def test_every_old_charge_is_reckoned_again(ledger: LedgerService, engine: Engine) -> None:
    write(engine, {"fast": FIRST}, START_NS)
    ledger.credit("ann", NANO_PER_USD)

    def charge(request_id: str, *, off_nano: int = 0, price: PricedModel = FIRST, held: int = 10**6) -> int:
        counts = {"prompt_tokens": 900_000, "cached_tokens": 100_000, "completion_tokens": 500_000}
        record = usage(request_id, lane="cloud", reasoning_tokens=300_000, price_id=price.id, **counts)
        due_nano = price.charge_for(900_000, 100_000, 500_000, 300_000)
        cost_nano = due_nano + off_nano
        hold = ledger.hold(request_id, "ann", held)
        bill = CloudBill("acme", cost_nano, cost_nano, price.id)
        ledger.holds.capture(hold, bill, record).result(ANSWER_S)
        return due_nano

    due_nano = charge("right")
    assert due_nano == -(-(800_000 * 40 + 100_000 * 20 + 500_000 * 80) // 10**6)
    # Never more is taken than was held.
    charge("held too little", held=due_nano - 30)
    with ledger.read() as session:
        assert mischarges(session) == []
    charge("wrong", off_nano=1)
    charge("unknown", price=SECOND)
    with ledger.read() as session:
        assert mischarges(session) == [
            Mischarge(
                "unknown",
                SECOND.charge_for(900_000, 100_000, 500_000),
                SECOND.charge_for(900_000, 100_000, 500_000),
                None,
            ),
            Mischarge("wrong", due_nano + 1, due_nano + 1, due_nano),
        ]
        assert len(mischarges(session, limit=1)) == 1
        assert mischarges(session, since_ns=START_NS + 1) == []


def test_own_work_costs_what_it_did_at_its_time(ledger: LedgerService, engine: Engine) -> None:
    terms = CostTerms(electricity_nano=3 * 10**8, machine_nano=0, life_years=4)
    for days, watts in ((0, 60.0), (2, 120.0)):
        for (_, name), priced in rates(terms, watts, {"desk": 600.0}, source="declared").items():
            write(engine, {name: priced}, START_NS + days * DAY_NS)
    seconds = 10**9
    for number, (lane, provider, days) in enumerate(
        [
            ("cluster", "cluster", 0),
            ("cluster", "cluster", 3),
            ("pool", "desk", 0),
            ("pool", "other", 2),
            ("cloud", "a", 0),
        ]
    ):
        record = usage(
            f"r{number}",
            lane=lane,
            provider=provider,
            started_ns=START_NS + days * DAY_NS,
            compute_nano=10 * seconds,
        )
        ledger.post(local.local_use(record))
    early = usage("early", started_ns=START_NS - 1, compute_nano=seconds)
    ledger.post(local.local_use(early))
    with ledger.read() as session:
        totals = usage_totals(session, ["provider"], since_ns=0, until_ns=START_NS + 9 * DAY_NS)
        day = usage_totals(session, ["lane"], since_ns=START_NS + 3 * DAY_NS, until_ns=START_NS + 4 * DAY_NS)
    costs = {total.group[0]: total.own_cost_nano for total in totals}
    # A kilowatt-hour costs 30 cents: 60 W are 5,000 nano a second. The cluster's machines are taken together.
    of_cluster = [work_nano(10 * seconds, rate) for rate in ((5_000 + 50_000) // 2, (10_000 + 50_000) // 2)]
    assert costs == {"": 0, "a": 0, "cluster": sum(of_cluster), "desk": 10 * 50_000, "other": 10 * 10_000}
    assert [total.own_cost_nano for total in day] == [of_cluster[1]]
