"""/accounting/v1 without Stripe: balances, statements, usage, budgets, credits, and who may see whose."""

import csv
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from accounting.chart import user_receivable
from accounting.ledger.postings import UsageRecord
from accounting.rules import local
from accounting.rules.corrections import correction
from gateway.identity.caller import Caller
from gateway.quota import Quota
from runtime.errors import BudgetExceeded
from runtime.times import at
from tests.gateway.api.conftest import Serve, Served
from tests.gateway.api.shops import USD, post

pytestmark = pytest.mark.anyio


@pytest.fixture
async def instance(serve: Serve, dsn: str) -> AsyncIterator[Served]:
    """With an organization `lab` of two users, one of whom administers it; on each kind of database."""
    async with serve(dsn) as served:
        users = served.services.directory.users
        users.add_organization("lab")
        users.add("lea", organization="lab", role="admin")
        users.add("ann", organization="lab")
        users.add("bob")
        yield served


async def get(client: httpx.AsyncClient, path: str, **params: Any) -> Any:
    answer = await client.get(f"/accounting/v1{path}", params=params)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def status(client: httpx.AsyncClient, path: str, **params: Any) -> int:
    return (await client.get(f"/accounting/v1{path}", params=params)).status_code


def used(instance: Served, user_id: str, number: int, **changes: Any) -> UsageRecord:
    """A request of a user's first key."""
    key = instance.services.keys.rows(user_id=user_id)[0]
    facts: dict[str, Any] = {
        "request_id": f"r-{user_id}-{number}",
        "user_id": user_id,
        "department": key.department,
        "key_id": key.key_id,
        "model": "m",
        "lane": "cloud",
        "provider": "openai",
        "prompt_tokens": 100,
        "cached_tokens": 0,
        "completion_tokens": 10,
        "count_source": "upstream",
        "outcome": "complete",
        "started_ns": time.time_ns(),
        "duration_ms": 5,
        "charge_nano": 2 * USD,
    }
    return UsageRecord(**facts | changes)


async def test_a_balance_tells_own_credits_promos_pool_and_debts_apart(instance: Served) -> None:
    async with (
        instance.machine as machine,
        instance.bearer(instance.key_of("ann")) as ann,
        instance.bearer(instance.key_of("lea")) as lea,
        instance.bearer(instance.key_of("bob")) as bob,
    ):
        ends = at(time.time_ns() + 30 * 86_400 * 10**9)
        for path, body in (
            ("/credits", {"user": "ann", "amount": "5.00"}),
            ("/credits", {"organization": "lab", "amount": "40.00"}),
            ("/credits/promo", {"user": "ann", "amount": "2.00", "expires": ends}),
        ):
            given = await post(machine, path, reason="test", **body)
            assert given.status_code == 200, given.text
        found = await get(ann, "/balance")
        assert (found["available"], found["held"], found["owed"]) == ("47.00", "0.00", "0.00")
        assert (found["paid"]["available"], found["pool"]["available"]) == ("5.00", "40.00")
        assert [(grant["available"], grant["expires"], grant["scope"]) for grant in found["promo"]] == [
            ("2.00", ends, "cloud")
        ]
        for admin in (lea, machine):
            assert (await get(admin, "/balance", user="ann")) | {"ledger_checkpoint": 0} == found | {
                "ledger_checkpoint": 0
            }
        assert (await get(ann, "/balance", organization="lab"))["available"] == "40.00"
        assert [await status(bob, "/balance", user="ann"), await status(bob, "/balance", organization="lab")] == [
            403,
            403,
        ]
        assert await status(lea, "/balance", user="bob") == 404
        assert await status(machine, "/balance") == 400
        assert await status(machine, "/balance", user="nobody") == 404


async def test_a_statement_is_paged_and_a_csv(instance: Served) -> None:
    async with (
        instance.machine as machine,
        instance.bearer(instance.key_of("ann")) as ann,
        instance.bearer(instance.key_of("lea")) as lea,
    ):
        for number in range(5):
            await post(machine, "/credits", user="ann", amount=f"{number + 1}.00", reason="=cmd()")
        moved = await post(ann, "/credits/pool", amount="3.00")
        assert moved.status_code == 200, moved.text
        first = await get(ann, "/transactions", limit=4)
        rest = await get(ann, "/transactions", limit=4, before=first["next"])
        amounts = [line["amount"] for line in first["data"] + rest["data"]]
        assert (amounts, rest["next"]) == (["-3.00", "5.00", "4.00", "3.00", "2.00", "1.00"], None)
        assert await status(ann, "/transactions", organization="lab") == 403, "it tells of others' requests"
        pool = await get(lea, "/transactions", organization="lab")
        assert [(line["amount"], line["counterpart"]) for line in pool["data"]] == [("3.00", "user:ann:paid")]
        sheet = await ann.get("/accounting/v1/transactions", params={"format": "csv", "limit": 4})
        assert (sheet.headers["content-type"], sheet.headers["x-next"]) == (
            "text/csv; charset=utf-8",
            str(first["next"]),
        )
        rows = list(csv.DictReader(sheet.text.splitlines()))
        assert [row["amount"] for row in rows] == amounts[:4]
        assert await status(ann, "/transactions", before=0) == 400
        assert await status(ann, "/transactions", user="lea") == 403


async def test_usage_is_grouped_and_everybody_sees_what_is_theirs(instance: Served) -> None:
    async with (
        instance.machine as machine,
        instance.bearer(instance.key_of("ann")) as ann,
        instance.bearer(instance.key_of("lea")) as lea,
        instance.bearer(instance.key_of("bob")) as bob,
    ):
        records = [
            used(instance, "ann", 1),
            used(instance, "ann", 2, model="=m"),
            used(instance, "bob", 1, lane="pool"),
        ]
        await instance.services.ledger.book(
            local.local_uses([*records, used(instance, "lea", 1, department="vision")])
        )
        mine = await get(ann, "/usage", by="model")
        assert [(row["model"], row["requests"], row["charge"]) for row in mine["data"]] == [
            ("=m", 1, "2.00"),
            ("m", 1, "2.00"),
        ]
        his = await get(machine, "/usage", by="user", scope="user:bob")
        costs = {"cost", "own_cost"}
        assert [{name: row[name] for name in row.keys() - costs} for row in his["data"]] == (
            await get(bob, "/usage", by="user")
        )["data"]
        assert costs <= his["data"][0].keys()
        of_lab = await get(lea, "/usage", by="user,team", scope="organization:lab")
        assert [(row["user"], row["team"], row["requests"]) for row in of_lab["data"]] == [
            ("ann", "home", 2),
            ("lea", "vision", 1),
        ]
        assert len((await get(lea, "/usage", by="team", scope="team:lab/vision"))["data"]) == 1
        assert sum(row["requests"] for row in (await get(machine, "/usage", by="lane"))["data"]) == 4
        paged = await get(machine, "/usage", by="user", limit=2)
        assert (len(paged["data"]), paged["next"]) == (2, 2)
        assert len((await get(machine, "/usage", by="user", limit=2, offset=2))["data"]) == 1
        key = instance.services.keys.rows(user_id="ann")[0].key_id
        assert (await get(ann, "/usage", by="key", scope=f"key:{key}"))["data"][0]["requests"] == 2
        sheet = (await ann.get("/accounting/v1/usage", params={"by": "model", "format": "csv"})).text
        assert [row["model"] for row in csv.DictReader(sheet.splitlines())] == ["'=m", "m"]
        assert (await get(ann, "/usage", since="2020-01-01T00:00:00Z", until="2020-02-01T00:00:00Z"))["data"] == []
        for who, scope, expected in (
            (ann, "organization:lab", 403),
            (ann, "all", 403),
            (lea, "all", 403),
            (lea, "user:bob", 404),
            (lea, f"key:{instance.services.keys.rows(user_id='bob')[0].key_id}", 404),
            (lea, "galaxy:x", 400),
            (machine, "team:lab", 400),
        ):
            assert await status(who, "/usage", scope=scope) == expected, scope
        assert await status(ann, "/usage", by="model,colour") == 400


async def test_budgets_of_users_teams_and_organizations(instance: Served) -> None:
    async with (
        instance.machine as machine,
        instance.bearer(instance.key_of("ann")) as ann,
        instance.bearer(instance.key_of("lea")) as lea,
    ):
        await instance.services.ledger.book(local.local_uses([used(instance, "ann", 1)]))
        budget = {"scope": "team:lab/home", "span": "month", "amount": "5.00"}
        made = await post(lea, "/budgets", verb="PUT", **budget)
        assert made.status_code == 200, made.text
        shown = made.json()
        assert (shown["amount"], shown["spent"], shown["left"]) == ("5.00", "2.00", "3.00")
        assert shown["resets_at"].endswith("-01T00:00:00.000Z")
        assert await get(ann, "/budgets") == {"data": [shown], "next": None}, "it holds for her key"
        caller = instance.services.keys.find(instance.key_of("ann"))
        assert caller
        assert caller.quotas == (Quota("team:lab/home", "spend", 5 * USD, "month"),)
        await _refuse_beyond(instance, caller, 3 * USD)
        other = instance.services.keys.create("camera", ("cloud",), user_id="ann", department="vision")
        unlimited = instance.services.keys.find(other)
        assert unlimited
        assert unlimited.quotas == (), "a key of another team"
        assert (await post(machine, "/budgets", verb="PUT", **budget | {"scope": "organization:lab"})).is_success
        assert len((await get(lea, "/budgets", scope="organization:lab"))["data"]) == 1
        first = await get(machine, "/budgets", limit=1)
        assert (len(first["data"]), first["next"]) == (1, 1)
        for who, scope, expected in (
            (ann, "user:ann", 403),
            (lea, "organization:lab", 403),
            (lea, "user:bob", 404),
            (lea, "team:home/home", 404),
            (machine, "team:nowhere/x", 404),
            (machine, "team:lab/a b", 400),
        ):
            refused = await post(who, "/budgets", verb="PUT", **budget | {"scope": scope})
            assert refused.status_code == expected, (scope, refused.text)
        gone = await lea.delete("/accounting/v1/budgets", params={"scope": "team:lab/home", "span": "month"})
        assert gone.status_code == 200
        assert [row["scope"] for row in (await get(ann, "/budgets"))["data"]] == ["organization:lab"]


async def _refuse_beyond(instance: Served, caller: Caller, left_nano: int) -> None:
    """Requests may cost so much more, and not a billionth beyond."""
    ticket = await instance.services.limits.enter(caller, "m", 10)
    await ticket.cover(left_nano)
    with pytest.raises(BudgetExceeded, match="team 'lab/home'"):
        await ticket.cover(left_nano + 1)
    ticket.leave(0, 0)


async def test_credits_settle_what_is_owed_and_are_given_once(instance: Served) -> None:
    ledger = instance.services.ledger
    await ledger.book(correction("debt", user_receivable("ann"), "asset:bank", 3 * USD))
    async with instance.machine as machine, instance.bearer(instance.key_of("ann")) as ann:
        answers = [
            await post(machine, "/credits", "k", user="ann", amount="5.00", reason="paid") for _ in range(2)
        ]
        assert answers[0].content == answers[1].content
        found = await get(ann, "/balance")
        assert (found["available"], found["owed"]) == ("2.00", "0.00")
        assert (await post(ann, "/credits", user="ann", amount="5.00", reason="wish")).status_code == 403
        assert (await post(ann, "/credits/pool", amount="2.01")).status_code == 402
        assert (await post(ann, "/credits/pool", amount="2.00")).status_code == 200
        back = {"organization": "lab", "user": "ann", "amount": "2.00"}
        assert (await post(ann, "/credits/pool/return", **back)).status_code == 403
        assert (await post(machine, "/credits/pool/return", **back)).status_code == 200
        assert (await get(ann, "/balance"))["available"] == "2.00"
    assert await ledger.findings(deep=True) == []
