"""Balance: what there is and how it came, done once however often it is asked for; others' money stays theirs."""

import asyncio
import csv
import io
import itertools
import re
import time
import uuid
from collections.abc import AsyncIterator
from datetime import date

import pytest
from sqlalchemy import text, update
from sqlalchemy.event import listen, remove

from accounting import chart
from accounting.ledger.balances import StatementLine
from accounting.money import NANO_PER_USD as USD
from accounting.payments.tables import stripe_event_table
from accounting.rules.held import CloudBill, Payer
from accounting.spending.credit_grants import CreditGrant, grants_of
from gateway.billing.spool import Settlement
from gateway.console.figures.month import Cell, daily
from gateway.console.pages.balance import manual_credits
from gateway.console.pages.balance.lines import ALL, LineFilter, codes_of, entry, read_lines
from gateway.console.pages.balance.whose import Whose
from gateway.quota import Quota
from tests.accounting.ledgers import usage
from tests.console.browsing import Visit, visiting
from tests.gateway.api.conftest import Serve, Served
from tests.gateway.api.conftest import serve as serve
from tests.gateway.api.shops import Shop, open_shop

pytestmark = pytest.mark.anyio

BALANCE = "/console/balance"
TABS = ("", "/topups", "/statement", "/budgets", "/cost", "/users", "/ledger", "/payments", "/credits")


@pytest.fixture(scope="module")
async def instance(served: Served) -> Served:
    """ann is a member of organization home, who was given credits; eve an admin of the lab, and bob its member."""
    users, ledger = served.services.directory.users, served.services.ledger
    users.add("ann")
    users.add_organization("lab", "The lab")
    users.add("eve", organization="lab", role="admin")
    users.add("bob", organization="lab")
    await ledger.credit("first", "ann", 20 * USD, "welcome")
    await ledger.credit("bobs", "bob", 3 * USD, "welcome")
    await ledger.credit_pool("labs", "lab", 50 * USD, "a grant")
    return served


@pytest.fixture
async def shop(serve: Serve) -> AsyncIterator[Shop]:
    async with open_shop(serve) as shop:
        yield shop


def once_of(page: str, action: str) -> str:
    """The key of a form of a page, by where it goes to."""
    form = re.search(
        rf'<form[^>]* action="{re.escape(action)}".*?name="once" value="([0-9a-f]{{32}})"', page, re.DOTALL
    )
    assert form, action
    return form[1]


async def form_of(visit: Visit, path: str, action: str) -> str:
    return once_of((await visit.get(path)).text, action)


async def ask_of(served: Served, user_id: str, request_id: str, charge_nano: int, key_id: str = "") -> None:
    """A cloud request that was held, answered and charged, as the gateway books it."""
    ledger = served.services.ledger
    held = await ledger.hold(request_id, Payer(user_id), 2 * charge_nano)
    used = usage(
        request_id,
        user_id=user_id,
        key_id=key_id,
        model="gpt",
        lane="cloud",
        provider="openai",
        started_ns=time.time_ns(),
        charge_nano=charge_nano,
    )
    settlement = Settlement(used, held, CloudBill("openai", charge_nano, charge_nano))
    [settled] = await asyncio.to_thread(ledger.settler.settle, [settlement])
    assert isinstance(settled, int), settled


# ---------------------------------------------------------------- who sees what


async def test_members_see_their_own_money_and_no_page_of_the_instance(instance: Served) -> None:
    async with visiting(instance, "ann") as ann:
        shown = await ann.get(BALANCE)
        assert shown.status_code == 200
        assert "$20.00" in shown.text
        for tab in ("/users", "/ledger", "/payments", "/credits"):
            assert (await ann.get(f"{BALANCE}{tab}")).status_code == 403, tab
            assert f'href="{BALANCE}{tab}"' not in shown.text
        for path in (BALANCE, f"{BALANCE}/statement", f"{BALANCE}/statement/csv"):
            assert (await ann.get(path, user="bob")).status_code == 403, path
            assert (await ann.get(path, organization="home")).status_code == 403, path
        assert (await ann.get(f"{BALANCE}/cost", whose="user:bob")).status_code == 403
        assert (
            await ann.post(f"{BALANCE}/credits/give", to="user:ann", amount="5", reason="x")
        ).status_code == 403


async def test_admins_of_an_organization_see_its_users_and_pool_alone(instance: Served) -> None:
    async with visiting(instance, "eve") as eve:
        users = await eve.get(f"{BALANCE}/users")
        assert "bob" in users.text
        assert "$50.00" in users.text
        assert "ann" not in re.sub(r"<nav.*?</nav>", "", users.text, flags=re.DOTALL)
        assert "$3.00" in (await eve.get(BALANCE, user="bob")).text
        assert (await eve.get(BALANCE, user="ann")).status_code == 404
        pool = await eve.get(f"{BALANCE}/statement", organization="lab")
        assert "pool:lab:paid" in pool.text
        assert (await eve.get(f"{BALANCE}/statement", organization="home")).status_code == 404
        for tab in ("/ledger", "/payments", "/credits"):
            assert (await eve.get(f"{BALANCE}{tab}")).status_code == 403, tab


async def test_a_key_that_may_not_administer_shows_only_its_own_users_money(instance: Served) -> None:
    weak = instance.services.keys.issue("app", ("cluster",), user_id="owner").token
    async with visiting(instance, "owner", token=weak) as owner:
        assert "no admin access" in (await owner.get(BALANCE)).text
        for path in (f"{BALANCE}/users", f"{BALANCE}/ledger", f"{BALANCE}?user=ann"):
            assert (await owner.get(path)).status_code == 403, path


async def test_a_key_that_may_not_administer_shows_no_cost_or_budget_of_others(instance: Served) -> None:
    instance.services.directory.users.add("mia")
    await instance.services.ledger.credit("mias", "mia", 20 * USD, "welcome")
    await ask_of(instance, "mia", "req_mia", 7 * USD, "mias-key")
    instance.services.directory.quotas.set(Quota("user:mia", "spend", 77 * USD, "month"))
    weak = instance.services.keys.issue("app", ("cluster",), user_id="owner").token
    async with visiting(instance) as strong, visiting(instance, "owner", token=weak) as owner:
        assert "mias-key" in (await strong.get(f"{BALANCE}/cost", by="key")).text
        assert "user mia" in (await strong.get(f"{BALANCE}/budgets")).text
        for path in ("/cost?by=key", "/cost/csv?by=key", "/budgets"):
            shown = await owner.get(f"{BALANCE}{path}")
            assert shown.status_code == 200, path
            assert "mias-key" not in shown.text, path
            assert "user mia" not in shown.text, path


async def test_every_tab_is_there_for_the_instance_and_found_users_have_their_credits(instance: Served) -> None:
    async with visiting(instance) as owner:
        for tab in TABS:
            assert (await owner.get(f"{BALANCE}{tab}")).status_code == 200, tab
        found = (await owner.get(f"{BALANCE}/users", text="AN")).text
        assert "$20.00" in found
        assert "user=bob" not in found
        assert "payments.secret_key" in (await owner.get(f"{BALANCE}/topups")).text
        assert (await owner.post(f"{BALANCE}/topups", amount="25.00", once=uuid.uuid4().hex)).status_code == 400


# ---------------------------------------------------------------- credits by hand


async def test_credits_are_given_once_however_often_the_form_is_sent(instance: Served) -> None:
    instance.services.directory.users.add("cay")
    async with visiting(instance) as owner:
        give = f"{BALANCE}/credits/give"
        once = await form_of(owner, f"{BALANCE}/credits?to=user:cay", give)
        fields = {"to": "user:cay", "amount": "5.00", "reason": "a bank transfer", "once": once}
        answers = [await owner.post(give, **fields), await owner.post(give, **fields)]
        assert [answer.status_code for answer in answers] == [303, 303]
        assert (await instance.services.ledger.balance("cay")).posted_nano == 5 * USD
        other = await owner.post(give, **fields | {"amount": "6.00"})
        assert other.status_code == 400
        assert "submitted with other values" in other.text
        assert 'value="6.00"' in other.text
        assert once_of(other.text, give) != once
        bad = await owner.post(give, **fields | {"amount": "5,00", "once": uuid.uuid4().hex})
        assert re.search(r'id="g-amount"[^>]*aria-invalid="true"', bad.text)
        assert 'value="a bank transfer"' in bad.text
        gone = await owner.post(give, **fields | {"to": "user:nobody", "once": uuid.uuid4().hex})
        assert gone.status_code == 400
        assert (await instance.services.ledger.balance("cay")).posted_nano == 5 * USD


async def test_of_very_many_users_those_who_are_meant_are_offered(
    instance: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manual_credits, "_OFFERED_MAX", 1)
    for name in ("zoe", "zora"):
        instance.services.directory.users.add(name)
    async with visiting(instance) as owner:
        offered = (await owner.get(f"{BALANCE}/credits", to="user:zoe")).text
        assert re.search(r'value="user:zoe"\s+selected', offered)
        assert "user:zora" not in offered


async def test_given_credits_show_their_end_and_own_ones_go_into_the_pool_and_back(instance: Served) -> None:
    instance.services.directory.users.add("dee", organization="lab")
    async with visiting(instance) as owner, visiting(instance, "dee") as dee:
        page = (await owner.get(f"{BALANCE}/credits?to=user:dee")).text
        grant = {"user": "dee", "amount": "2.00", "days": "90", "reason": "hello dee"}
        once = once_of(page, f"{BALANCE}/credits/grant")
        late = await owner.post(f"{BALANCE}/credits/grant", **grant | {"days": "3651"}, once=once)
        assert re.search(r'id="p-days"[^>]*aria-invalid="true"', late.text)
        for _ in range(2):  # The first two are on their way at once.
            sent = [owner.post(f"{BALANCE}/credits/grant", **grant, once=once) for _ in range(2)]
            assert {done.status_code for done in await asyncio.gather(*sent)} == {303}
        other = await owner.post(f"{BALANCE}/credits/grant", **grant | {"days": "91"}, once=once)
        assert (other.status_code, "already submitted with other values" in other.text) == (400, True)
        await instance.services.ledger.credit("dees", "dee", 10 * USD, "x")
        shown = (await dee.get(BALANCE)).text
        assert shown.count("hello dee") == 1
        assert "$62.00" in shown  # the grant, the lab's pool, and own credits
        put = {"amount": "4.00", "once": once_of(shown, f"{BALANCE}/pool")}
        for _ in range(2):
            assert (await dee.post(f"{BALANCE}/pool", **put)).status_code == 303
        assert (await instance.services.ledger.balance("dee")).posted_nano == 6 * USD
        refused = await dee.post(f"{BALANCE}/pool", amount="100.00", once=uuid.uuid4().hex)
        assert refused.status_code == 400
        assert re.search(r'id="f-amount"[^>]*aria-invalid="true"', refused.text)
        back = await form_of(owner, f"{BALANCE}/credits", f"{BALANCE}/credits/return")
        for _ in range(2):
            answer = await owner.post(f"{BALANCE}/credits/return", user="dee", amount="1.00", once=back)
            assert answer.status_code == 303, answer.text
        assert (await instance.services.ledger.balance("dee")).posted_nano == 7 * USD


async def test_goodwill_and_corrections_are_booked_once_and_written_to_the_audit_log(instance: Served) -> None:
    instance.services.directory.users.add("lou")
    ledger = instance.services.ledger
    async with visiting(instance) as owner:
        page = (await owner.get(f"{BALANCE}/credits")).text
        good = {"user": "lou", "amount": "3.00", "reason": "an outage"}
        once = once_of(page, f"{BALANCE}/credits/goodwill")
        fix = {
            "incident": "twice",
            "debit": "user:lou:paid",
            "credit": "asset:bank",
            "amount": "1",
            "reason": "typo",
        }
        for _ in range(2):
            assert (await owner.post(f"{BALANCE}/credits/goodwill", **good, once=once)).status_code == 303
            answer = await owner.post(f"{BALANCE}/credits/correct", **fix, once=uuid.uuid4().hex)
            assert answer.status_code == 303, answer.text
        assert (await ledger.balance("lou")).posted_nano == 2 * USD
        for field, bad in (
            ("incident", {"amount": "2"}),
            ("debit", {"debit": "user:lou"}),
            ("amount", {"incident": "x", "amount": "99"}),
        ):
            refused = await owner.post(f"{BALANCE}/credits/correct", **fix | bad, once=uuid.uuid4().hex)
            assert refused.status_code == 400
            assert re.search(rf'id="c-{field}"[^>]*aria-invalid="true"', refused.text), field
        assert (await ledger.balance("lou")).posted_nano == 2 * USD
        log = (await owner.get("/console/policy/history", action="ledger.correct")).text
        assert log.count("account user:lou:paid") == 1


# ---------------------------------------------------------------- statement


async def test_a_statement_has_both_sides_what_was_left_and_the_request_behind(instance: Served) -> None:
    instance.services.directory.users.add("fay")
    key = instance.services.keys.issue("fays", ("cluster",), user_id="fay")
    await instance.services.ledger.credit("fays", "fay", 10 * USD, "welcome")
    for number in range(3):
        await ask_of(instance, "fay", f"req_fay_{number}", USD, key.row.key_id if number == 0 else "another")
    async with visiting(instance, "fay") as fay, visiting(instance) as owner:
        shown = (await owner.get(f"{BALANCE}/statement", user="fay", kind="requests")).text
        assert "/console/requests/req_fay_2" in shown
        assert ">user:fay:paid</code>" in shown
        sheet = await fay.get(f"{BALANCE}/statement/csv")
        rows = list(csv.DictReader(io.StringIO(sheet.text)))
        assert {row["account"] for row in rows} == {"user:fay:paid"}
        assert (rows[0]["balance"], rows[-1]["balance"], rows[-1]["debit"]) == ("7.00", "10.00", "asset:bank")
        moved = [row for row in rows if row["phase"] in ("single", "post")]
        for newer, older in itertools.pairwise(moved):
            assert float(newer["balance"]) - float(newer["amount"]) == pytest.approx(float(older["balance"]))
        today = date.today().isoformat()  # noqa: DTZ011 - near midnight the next assertion alone may differ
        assert "asset:bank" in (await fay.get(f"{BALANCE}/statement", since="2020-01-01", until="2999-01-01")).text
        assert "No matching transfers" in (await fay.get(f"{BALANCE}/statement", until="2020-01-01")).text
        assert "asset:bank" in (await fay.get(f"{BALANCE}/statement", until="9999-12-31")).text
        wrong = await fay.get(f"{BALANCE}/statement", since=today, until="2020-01-01")
        assert wrong.status_code == 400
        assert re.search(r'id="f-until"[^>]*aria-invalid="true"', wrong.text)
        assert (await fay.get(f"{BALANCE}/statement", account="nothing")).status_code == 404
        assert (await fay.get(f"{BALANCE}/statement", kind="nothing")).status_code == 400
    async with visiting(instance, "fay", token=key.token) as by_key:
        shown = (await by_key.get(f"{BALANCE}/statement", kind="requests")).text
        assert "/console/requests/req_fay_0" in shown
        assert "/console/requests/req_fay_1" not in shown


async def test_pages_of_a_statement_go_on_where_the_last_ended_with_the_same_balance(instance: Served) -> None:
    """Of several accounts together, each line has what was left on its own."""
    ledger, own, grant = instance.services.ledger, chart.user_paid("gus"), chart.user_promo("gus", "welcome")
    instance.services.directory.users.add("gus")
    for number in range(7):
        await ledger.credit(f"gus{number}", "gus", (number + 1) * USD, "bit by bit")
        if number == 3:
            await ledger.grant(CreditGrant("welcome", "gus", 5 * USD, time.time_ns() + 10**15))
    await ask_of(instance, "gus", "req_gus", USD)

    everything = LineFilter()

    def read(before: int | None, limit: int, wanted: LineFilter = everything) -> list[tuple[int, str, int]]:
        with instance.services.directory.read() as session:
            found = read_lines(session, [own, grant], wanted, before, limit)
        lines = [(line.line.transfer_seq, line.account, line.balance_nano) for line in found.lines]
        return lines + (read(found.before, limit, wanted) if found.before else [])

    whole = read(None, 50)
    assert [nano // USD for _, code, nano in whole if code == own] == [28, 21, 15, 10, 6, 3, 1]
    assert [nano // USD for _, code, nano in whole if code == grant] == [4, 5, 5]
    assert [seq for seq, _, _ in whole] == sorted((seq for seq, _, _ in whole), reverse=True)
    for limit in (1, 2, 3):
        assert read(None, limit) == whole
    assert len(read(None, 2, LineFilter(moved=True))) == len(whole) - 1
    assert read(None, 2, LineFilter(kind="topups")) == []


async def test_grants_that_ended_long_ago_cost_a_page_nothing(instance: Served) -> None:
    """And of more grants than a statement has, those that end last are in it."""
    ledger, ends_ns = instance.services.ledger, time.time_ns() + 10**15
    for number in range(12):
        await ledger.grant(CreditGrant(f"kim{number:02}", "kim", USD, ends_ns + number))
    for number in range(4):
        await ledger.credit(f"kim{number}", "kim", USD, "later")
    asked: list[str] = []
    with instance.services.directory.read() as session:
        codes = codes_of(session, Whose("kim", "", "kim", is_own=True), ALL)
        # Of this connection: the gateway's background work has others.
        connection = session.connection()
        listen(connection, "before_cursor_execute", note := lambda *args: asked.append(args[2]))
        found = read_lines(session, codes, LineFilter(), None, 4)
        remove(connection, "before_cursor_execute", note)
        assert [line.account for line in found.lines] == [chart.user_paid("kim")] * 4
        assert found.before is not None, "the grants are older"
        assert 0 < len(asked) <= 2
        rest = read_lines(session, codes, LineFilter(), found.before, 50)
        assert rest.lines[0].account == chart.user_promo("kim", "kim11")
        assert len(rest.lines) == 12
        assert [left.grant.id for left in grants_of(session, "kim", limit=2)] == ["kim10", "kim11"]


def test_an_account_grows_on_its_own_side() -> None:
    def line(amount_nano: int, phase: str = "single") -> StatementLine:
        return StatementLine(1, 1, 1, "credit", "x", phase, "asset:bank", amount_nano)

    grown = entry("user:ann:paid", line(5), 5)
    assert (grown.debit, grown.credit, grown.moved_nano) == ("asset:bank", "user:ann:paid", 5)
    spent = entry("user:ann:paid", line(-5), 0)
    assert (spent.debit, spent.credit) == ("user:ann:paid", "asset:bank")
    owed = entry("asset:user_recv:ann", line(5), 5)
    assert (owed.debit, owed.credit) == ("asset:user_recv:ann", "asset:bank")
    assert entry("user:ann:paid", line(-5, "pending"), 7).moved_nano == 0


def test_days_without_use_are_there_and_the_small_ones_are_together() -> None:
    day_ns = 86_400 * 10**9
    cells = [Cell("1970-01-02", f"model {number}", number, number) for number in range(1, 9)]
    drawn = daily(cells, 2 * day_ns, 3)
    assert drawn.names == ("model 8", "model 7", "model 6", "model 5", "model 4", "others")
    assert drawn.tokens == [[0, 0, 0, 0, 0, 0, 0], [86_400, 8, 7, 6, 5, 4, 6], [172_800, 0, 0, 0, 0, 0, 0]]


# ---------------------------------------------------------------- budgets and cost


async def test_budgets_that_hold_are_there_with_their_use_and_where_they_are_changed(instance: Served) -> None:
    users, quotas = instance.services.directory.users, instance.services.directory.quotas
    users.add("hal")
    quotas.set(Quota("user:hal", "spend", 4 * USD, "month"))
    quotas.set(Quota("organization:lab", "spend", 9 * USD, "day"))
    await instance.services.ledger.credit("hals", "hal", 10 * USD, "welcome")
    await ask_of(instance, "hal", "req_hal", USD)
    async with visiting(instance, "hal") as hal, visiting(instance, "eve") as eve, visiting(instance) as owner:
        own = (await hal.get(f"{BALANCE}/budgets")).text
        assert "user hal" in own
        assert 'href="/console/keys/users/hal"' not in own  # an admins' page
        assert "$4.00" in own
        assert "All budgets" not in own
        assert "Your organization&#39;s budgets" not in own
        labs = (await eve.get(f"{BALANCE}/budgets")).text
        assert "organization lab" in labs
        assert "user hal" not in labs
        assert 'href="/console/keys/users/hal"' in (await owner.get(f"{BALANCE}/budgets")).text


async def test_cost_is_the_visitors(instance: Served) -> None:
    instance.services.directory.users.add("ivy")
    await instance.services.ledger.credit("ivys", "ivy", 10 * USD, "welcome")
    await ask_of(instance, "ivy", "req_ivy", 2 * USD)
    async with visiting(instance, "bob") as bob, visiting(instance) as owner:
        for by in ("model", "key"):
            mine = await bob.get(f"{BALANCE}/cost", by=by)
            assert mine.status_code == 200
            assert "gpt" not in mine.text
            whole = await owner.get(f"{BALANCE}/cost", by=by, whose="user:ivy")
            assert "$2.00" in whole.text, by
        assert "Savings vs. cloud" not in (await bob.get(f"{BALANCE}/cost")).text
        sheet = await owner.get(f"{BALANCE}/cost/csv", whose="user:ivy")
        assert sheet.headers["content-type"].startswith("text/csv")
        assert "gpt" in sheet.text


# ---------------------------------------------------------------- the ledger


async def test_the_ledger_is_checked_and_verified_on_request(instance: Served) -> None:
    async with visiting(instance) as owner:
        page = await owner.get(f"{BALANCE}/ledger")
        assert "Debits equal credits in each currency." in page.text
        checked = await owner.post(f"{BALANCE}/ledger/check")
        assert checked.status_code == 200
        assert "not checked yet" not in checked.text
        wrong = await owner.post(f"{BALANCE}/ledger/verify", known="nothing", htmx=True)
        assert wrong.status_code == 400
        async with asyncio.timeout(60):
            while not instance.services.ledger.checkpoint:
                await asyncio.sleep(0.1)
        verdict = await owner.post(f"{BALANCE}/ledger/verify", from_block="1", htmx=True)
        assert verdict.status_code == 200, verdict.text
        assert "Verified" in verdict.text
        beyond = await owner.post(f"{BALANCE}/ledger/verify", from_block="1000000", htmx=True)
        assert re.search(r'id="f-from_block"[^>]*aria-invalid="true"', beyond.text)


async def test_what_is_broken_stands_first_with_where_and_what_it_means(serve: Serve) -> None:
    async with serve() as served, visiting(served) as owner:
        await served.services.ledger.credit("first", "ann", 20 * USD, "welcome")
        with served.services.directory.write() as session, session.begin():
            session.execute(text("DROP TRIGGER account_fixed"))
            session.execute(
                text("UPDATE account SET credits_posted = credits_posted + 7 WHERE code = 'user:ann:paid'")
            )
        page = (await owner.get(f"{BALANCE}/ledger")).text
        assert "Spending stops while money may be at risk" in page
        first = page[page.index("<tbody>", page.index("Violations")) :].partition("</tr>")[0]
        assert "broken" in first
        assert "Debits equal credits in each currency." in first
        assert "20000000007" in first


# ---------------------------------------------------------------- payments


async def test_a_top_up_says_its_fee_first_and_books_nothing_before_stripe_says_so(shop: Shop) -> None:
    shop.served.services.directory.users.add("ann")
    async with visiting(shop.served, "ann") as ann:
        page = (await ann.get(f"{BALANCE}/topups")).text
        assert "$26.38 to pay" in page
        fields = {"amount": "25.00", "save_method": "true", "once": once_of(page, f"{BALANCE}/topups")}
        answers = [await ann.post(f"{BALANCE}/topups", htmx=True, **fields) for _ in range(2)]
        assert [answer.status_code for answer in answers] == [204, 204]
        assert len({answer.headers["hx-redirect"] for answer in answers}) == 1
        assert answers[0].headers["hx-redirect"].startswith("https://checkout.stripe.test/")
        other = await ann.post(f"{BALANCE}/topups", htmx=True, **fields | {"amount": "50.00"})
        assert other.status_code == 400
        assert "submitted with other values" in other.text
        strange = await ann.post(f"{BALANCE}/topups", amount="7.00", once=uuid.uuid4().hex)
        assert strange.status_code == 400
        assert 'id="f-amount-error"' in strange.text
        [topup] = await shop.payments_service.ask(shop.payments_service.payments.topups.newest, "ann", None, 10)
        back = (await ann.get(f"{BALANCE}/paid", session=topup.session_id)).text
        assert "awaiting confirmation" in back
        assert (await shop.paid("ann"), "$25.00" in (await ann.get(BALANCE)).text) == (0, True)  # pending
        assert "is still open" in (await ann.get(f"{BALANCE}/cancelled")).text
        await shop.pay(topup.id)
        await shop.settle()
        assert "of credits added" in (await ann.get(f"{BALANCE}/paid", session=topup.session_id)).text
        assert f"{BALANCE}/topups/{topup.id}" in (await ann.get(f"{BALANCE}/statement")).text
        # What is paid is not opened again by the same form.
        again = await ann.post(f"{BALANCE}/topups", htmx=True, **fields)
        assert again.headers["hx-redirect"] == f"{BALANCE}/topups/{topup.id}"
    async with visiting(shop.served) as owner:
        assert (await owner.get(f"{BALANCE}/topups/{topup.id}")).status_code == 200
        shop.served.services.directory.users.add("bob")
    async with visiting(shop.served, "bob") as bob:
        assert (await bob.get(f"{BALANCE}/topups/{topup.id}")).status_code == 404
        assert (await bob.get(f"{BALANCE}/topups", user="ann")).status_code == 403


async def test_automatic_top_ups_need_a_saved_method_and_can_be_ended(shop: Shop) -> None:
    shop.served.services.directory.users.add("ann")
    auto = f"{BALANCE}/auto"
    async with visiting(shop.served, "ann") as ann, shop.of("ann") as client:
        wish = {"amount": "10.00", "per_day": "2", "per_month": "40"}
        early = await ann.post(auto, **wish, below="5", once=uuid.uuid4().hex)
        assert early.status_code == 400
        await shop.buy(client, save_method=True)
        once = await form_of(ann, f"{BALANCE}/topups", auto)
        much = await ann.post(auto, **wish, below="50", once=once)
        assert re.search(r'id="a-below"[^>]*aria-invalid="true"', much.text)
        assert 'value="50"' in much.text
        for per_month in ("10", "much", ""):
            less = wish | {"per_month": per_month}
            little = await ann.post(auto, **less, below="5", once=once_of(much.text, auto))
            assert little.status_code == 400
            assert re.search(r'id="a-per_month"[^>]*aria-invalid="true"', little.text), per_month
        assert (await ann.post(auto, **wish, below="5", once=once)).status_code == 303
        page = (await ann.get(f"{BALANCE}/topups")).text
        assert "$10.00 when your credits fall below $5.00" in page
        assert "and $40.00 a month. Paid this month: $0.00" in page
        assert re.search(r'value="40\.00"[^>]*id="a-per_month"', page)
        assert "Monthly limit reached" not in page
        await shop.payments_service.ask(
            shop.payments_service.payments.payers.top_up_below, "ann", 50 * USD, 50 * USD, 24, 53 * USD
        )
        assert await shop.payments_service.ask(shop.payments_service.payments.topups.open_auto, "ann", "first")
        full = (await ann.get(f"{BALANCE}/topups")).text
        assert "Paid this month: $52.75" in full
        assert "Monthly limit reached" in full
        off = await ann.post(f"{auto}/off", once=once_of(page, f"{auto}/off"))
        assert off.status_code == 303
        assert "No automatic purchases" in (await ann.get(f"{BALANCE}/topups")).text


async def test_the_oldest_page_of_blocks_has_none_of_the_page_before(instance: Served) -> None:
    ledger = instance.services.ledger
    async with asyncio.timeout(60):
        for number in itertools.count():
            if ledger.checkpoint and ledger.checkpoint.n >= 2:
                break
            await ledger.credit(f"block{number}", "ann", 1, "for a block")
            await asyncio.sleep(0.3)
    async with visiting(instance) as owner:
        shown = (await owner.get(f"{BALANCE}/ledger", block="1")).text
        assert shown.count('<tr><td class="num">') == 1


async def test_operators_refund_compare_retry_and_freeze(shop: Shop) -> None:
    shop.served.services.directory.users.add("ann")
    payments = f"{BALANCE}/payments"
    async with shop.of("ann") as client, visiting(shop.served) as owner, visiting(shop.served, "ann") as ann:
        topup = await shop.buy(client)
        action = f"{BALANCE}/topups/{topup}/refund"
        once = await form_of(owner, f"{BALANCE}/topups/{topup}", action)
        for _ in range(2):
            assert (await owner.post(action, amount="5.00", once=once)).status_code == 303
        await shop.settle()
        refunds = await shop.payments_service.ask(shop.payments_service.payments.refunds.newest, "ann", None, 10)
        assert len(refunds) == 1
        listed = (await owner.get(f"{BALANCE}/topups", user="all")).text
        assert '<span class="mr-row">$5.00' in listed, "beside its top-up"
        much = await owner.post(action, amount="20.01", once=uuid.uuid4().hex)
        assert re.search(r'id="f-amount"[^>]*aria-invalid="true"', much.text)
        assert (await ann.post(action, amount="5.00", once=uuid.uuid4().hex)).status_code == 403
        compared = await owner.post(f"{payments}/reconcile", once=uuid.uuid4().hex)
        assert compared.status_code == 303
        assert "all matched" in (await owner.get(payments)).text
        frozen = await owner.post(f"{payments}/freeze", user="ann", why="a strange card", once=uuid.uuid4().hex)
        assert frozen.status_code == 303
        assert "a strange card" in (await ann.get(BALANCE)).text
        assert "a strange card" in (await owner.get(payments)).text
        refused = await ann.post(f"{BALANCE}/topups", amount="10.00", once=uuid.uuid4().hex)
        assert refused.status_code == 400
        assert (await owner.post(f"{payments}/thaw", user="ann", once=uuid.uuid4().hex)).status_code == 303
        nobody = await owner.post(f"{payments}/freeze", user="nobody", why="x", once=uuid.uuid4().hex)
        assert nobody.status_code == 400
        gone = await owner.post(f"{payments}/messages/evt_none/retry", once=uuid.uuid4().hex)
        assert gone.status_code == 404


async def test_messages_that_failed_and_money_that_does_not_match_are_there_to_be_looked_into(shop: Shop) -> None:
    shop.served.services.directory.users.add("ann")
    payments = f"{BALANCE}/payments"
    async with shop.of("ann") as client, visiting(shop.served) as owner:
        await shop.buy(client)
        with shop.served.services.directory.write() as session, session.begin():
            session.execute(update(stripe_event_table).values(status="failed", reason="a strange reason"))
        shown = (await owner.get(payments)).text
        assert "a strange reason" in shown
        retry = re.search(rf'action="({payments}/messages/[^"]+/retry)"', shown)
        assert retry
        assert (await owner.post(retry[1], once=uuid.uuid4().hex)).status_code == 303
        await shop.settle()
        # Paid, and Stripe's message gets lost.
        once = await form_of(owner, f"{BALANCE}/topups", f"{BALANCE}/topups")
        await owner.post(f"{BALANCE}/topups", amount="10.00", once=once)
        [topup] = await shop.payments_service.ask(shop.payments_service.payments.topups.newest, "owner", None, 10)
        await shop.pay(topup.id)
        compared = await owner.post(f"{payments}/reconcile", once=uuid.uuid4().hex)
        assert compared.status_code == 303
        shown = (await owner.get(payments)).text
        assert "unmatched, in suspense" in shown
        assert "purpose unknown" in shown
