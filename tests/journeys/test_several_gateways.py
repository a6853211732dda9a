"""Two gateways with one PostgreSQL and one Redis: keys, limits and credits are one, whatever dies."""

import asyncio
import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import openai
import psycopg
import pytest
from openai.types import Batch

from accounting.ledger.health import findings
from accounting.rules import local
from runtime.database import open_engine, read_sessions
from tests import crowds
from tests.accounting.ledgers import LedgerService, usage
from tests.crowds import (
    DEAR,
    DEAR_HELD_NANO,
    DEAR_NANO,
    FREE,
    LONG_S,
    PAID,
    PAID_NANO,
    ask,
    crowd,
    crowd_while_held,
    new_key,
    usd,
)
from tests.databases import Databases
from tests.fakes.counting_provider import CountingProvider, counting_provider
from tests.gateways import Gateway, complete_command, running_gateway, until
from tests.redis_server import RedisServer

CROWD = 120
# Much less than what a lease on places lasts after it was last renewed.
AT_ONCE_S = 1.0
SECRET = "one secret for every gateway of this database"


@dataclass
class Fleet:
    """What all gateways share, and those that run."""

    provider: CountingProvider
    redis: RedisServer
    dsn: str
    folder: Path
    gateways: list[Gateway]

    @contextmanager
    def another(self, name: str) -> Iterator[Gateway]:
        """One more, once it has found its backend."""
        with running_gateway(self.folder / name, model=None, settings=self.settings()) as gateway:
            until(lambda: ask(gateway, gateway.api_key, FREE).status == 200 or None)
            yield gateway

    def settings(self) -> dict[str, str]:
        return crowds.settings(
            self.provider,
            self.folder,
            DATABASE__DSN=self.dsn,
            REDIS__URL=self.redis.url,
            IDENTITY__SECRET=SECRET,
            LOG__ACCESS="off",
        )

    def findings(self) -> list[str]:
        """What is wrong with the ledger, looked at in every way there is."""
        engine = open_engine(self.dsn)
        with read_sessions(engine)() as session:
            found = [finding.rule for finding in findings(session, time.time_ns())]
        engine.dispose()
        return found

    def use(self, key_id: str, requests: int) -> None:
        """Have the ledger know of requests of a key that ended a moment ago."""
        engine = open_engine(self.dsn)
        with LedgerService(engine) as ledger:
            for number in range(requests):
                row = usage(f"{key_id}-{number}", key_id=key_id, user_id="ann", started_ns=time.time_ns() - 10**9)
                ledger.post(local.local_use(row))
        engine.dispose()

    def credit(self, user: str, amount_nano: int) -> None:
        engine = open_engine(self.dsn)
        with LedgerService(engine) as ledger:
            ledger.now_ns = time.time_ns()
            ledger.credit(user, amount_nano)
        engine.dispose()


@pytest.fixture(scope="module")
def fleet(databases: Databases, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("gateways")
    redis = RedisServer()
    with ExitStack() as stack:
        provider = stack.enter_context(counting_provider())
        dsn = stack.enter_context(databases.database("postgresql", migrated=False))
        stack.callback(redis.close)
        redis.start()
        fleet = Fleet(provider, redis, dsn, folder, [])
        # At the same moment, on a database without tables.
        with ThreadPoolExecutor() as starting:
            begun = [starting.submit(stack.enter_context, fleet.another(name)) for name in ("one", "two")]
            fleet.gateways += [each.result() for each in begun]
        assert not list(folder.glob("*/millrace.db")), "the ledger is where the settings say"
        fleet.credit("rich", 10**9)
        fleet.credit("poor", 12 * DEAR_NANO)
        yield fleet


def test_a_key_of_one_is_a_key_of_the_other(fleet: Fleet) -> None:
    one, two = fleet.gateways
    key = new_key(one, "ann")
    assert ask(two, key, FREE).status == 200
    assert ask(one, two.api_key, FREE).status == 200


def test_a_gateway_with_another_secret_does_not_start(fleet: Fleet) -> None:
    """Its keys would be known nowhere else, and theirs not here."""
    words = ("up", "--port", "0", "--data-dir", str(fleet.folder / "stranger"))
    stranger = complete_command(*words, environment={"MILLRACE_DATABASE__DSN": fleet.dsn})
    assert stranger.returncode == 1
    assert "identity.secret_file" in stranger.stderr


def test_a_batch_runs_where_its_file_is(fleet: Fleet) -> None:
    """Whichever gateway is asked to begin it and to say how far it is; its files stay where they are."""
    one, two = fleet.gateways
    key = new_key(one, "ann")
    here, there = one.openai(key), two.openai(key)
    body = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": crowds.question(FREE)}
    file = here.files.create(file=("in.jsonl", json.dumps(body).encode()), purpose="batch")
    batch = there.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
    ended = until(lambda: _ended(there, batch.id))
    assert ended.output_file_id
    with pytest.raises(openai.ConflictError, match="is stored by another gateway"):
        there.files.content(ended.output_file_id)
    answer = json.loads(here.files.content(ended.output_file_id).text)
    assert answer["response"]["status_code"] == 200


def test_a_crowd_at_both_is_served_what_one_limit_allows(fleet: Fleet) -> None:
    limits = [
        {"measure": "requests", "amount": "40", "span": "minute"},
        {"measure": "tokens", "amount": "100000", "span": "day"},
    ]
    key = new_key(fleet.gateways[0], "requests", limits)
    replies = asyncio.run(crowd(fleet.gateways, key, CROWD, FREE))
    assert replies.statuses() == {200: 40, 429: CROWD - 40}
    assert all("40 requests a minute" in reply.message for reply in replies.refused)


def test_places_are_those_of_both(fleet: Fleet) -> None:
    key = new_key(fleet.gateways[0], "places", [{"measure": "concurrency", "amount": "9"}])
    replies = asyncio.run(crowd_while_held(fleet.provider, fleet.gateways, key, CROWD, 9))
    assert fleet.provider.at_once_most == 9
    assert replies.served == 9
    assert {reply.status for reply in replies.refused} == {429}


@pytest.mark.parametrize("is_shared", [True, False])
def test_a_slow_ledger_refuses_nobody_and_no_limit_is_forgotten(fleet: Fleet, is_shared: bool) -> None:
    """A key's first request comes while nobody can say what it used before."""
    limit, used = 5, 2
    with ExitStack() as stack:
        gateway = fleet.gateways[0]
        if not is_shared:
            settings = {name: value for name, value in fleet.settings().items() if name != "REDIS__URL"}
            alone = running_gateway(fleet.folder / "alone", model=None, settings=settings)
            gateway = stack.enter_context(alone)
            until(lambda: ask(gateway, gateway.api_key, FREE).status == 200 or None)
        key = new_key(gateway, "ann", [{"measure": "requests", "amount": str(limit), "span": "day"}])
        fleet.use(_key_id(gateway, key), used)
        with _locked(fleet.dsn, "usage", "usage_sum"):
            assert ask(gateway, key, FREE).status == 200
        until(lambda: _is_idle(fleet.dsn) or None)
        replies = [ask(gateway, key, FREE) for _ in range(limit)]
    assert [reply.status for reply in replies] == [200] * (limit - used - 1) + [429] * (used + 1)


@contextmanager
def _locked(dsn: str, *tables: str) -> Iterator[None]:
    """Inside the block nobody can read or write these."""
    with psycopg.connect(dsn) as connection:
        connection.execute(f"LOCK TABLE {', '.join(tables)} IN ACCESS EXCLUSIVE MODE")
        yield
        connection.rollback()


def _is_idle(dsn: str) -> bool:
    busy = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'millrace' AND state <> 'idle'"
    with psycopg.connect(dsn) as connection:
        (count,) = connection.execute(busy).fetchone() or (1,)
    return bool(count == 0)


@pytest.mark.parametrize("span", ["minute", "day"])
def test_a_limit_holds_while_redis_forgets_all_again_and_again(fleet: Fleet, span: str) -> None:
    """With requests under way each time, and others that ended a moment before."""
    limit, wave = 60, 16
    key = new_key(fleet.gateways[0], "ann", [{"measure": "requests", "amount": str(limit), "span": span}])
    waves: list[crowds.Replies] = []
    while not waves or waves[-1].served:
        waves.append(asyncio.run(_crowd_over_a_loss(fleet, key, wave)))
        assert len(waves) <= 2 * limit // wave, "nobody was refused"
    assert {reply.status for replies in waves for reply in replies.refused} == {429}
    assert sum(replies.served for replies in waves) == limit


async def _crowd_over_a_loss(fleet: Fleet, key: str, size: int) -> crowds.Replies:
    """Redis is emptied once all of the crowd are under way, or some were refused."""
    replies = crowds.Replies()
    fleet.provider.hold()
    asking = asyncio.create_task(crowd(fleet.gateways, key, size, FREE, replies))
    try:
        async with asyncio.timeout(LONG_S):
            while fleet.provider.at_once + len(replies.all) < size:
                await asyncio.sleep(0.02)
        with fleet.redis.client() as client:
            client.flushall()
    finally:
        fleet.provider.release()
    return await asking


def _ended(client: openai.OpenAI, batch_id: str) -> Batch | None:
    batch = client.batches.retrieve(batch_id)
    return batch if batch.completed_at else None


def test_one_gateway_writes_the_ledger_and_commands_send_it_their_events(fleet: Fleet) -> None:
    def leading() -> list[float]:
        return [_metric(gateway, "millrace_ledger_leader") for gateway in fleet.gateways]

    until(lambda: sorted(leading()) == [0, 1] or None)
    epochs = {_metric(gateway, "millrace_ledger_epoch") for gateway in fleet.gateways}
    environment = {f"MILLRACE_{name}": value for name, value in fleet.settings().items()}
    follower = fleet.gateways[leading().index(0)]
    command = ("credit", "add", "1", "--id", "once", "--json")
    added = [json.loads(follower.cli(*command, environment=environment)) for _ in range(2)]
    assert [each["was_there"] for each in added] == [False, True]
    assert {_metric(gateway, "millrace_ledger_epoch") for gateway in fleet.gateways} == epochs


def _metric(gateway: Gateway, name: str) -> float:
    lines = gateway.http().get("/metrics").text.splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))


@pytest.mark.parametrize("pays", ["budget", "credits"])
def test_money_is_spent_once_and_to_the_last_request(fleet: Fleet, pays: str) -> None:
    n = 12
    limit = {"measure": "spend", "amount": usd(n * DEAR_NANO), "span": "day"}
    if pays == "budget":
        key, code = new_key(fleet.gateways[0], "rich", [limit]), "budget_exceeded"
    else:
        key, code = new_key(fleet.gateways[0], "poor"), "insufficient_credit"
    replies = asyncio.run(crowd(fleet.gateways, key, CROWD, DEAR))
    assert {reply.code for reply in replies.refused} == {code}
    quiet_s = 2.5 if pays == "budget" else 7.0
    least = n - DEAR_HELD_NANO // DEAR_NANO - replies.served
    served = replies.served + _take_the_rest(fleet, key, DEAR, code, least, quiet_s)
    assert n * DEAR_NANO - DEAR_HELD_NANO < served * DEAR_NANO <= n * DEAR_NANO
    until(lambda: fleet.findings() == [] or None)


def _take_the_rest(fleet: Fleet, key: str, model: str, code: str, least: int, quiet_s: float) -> int:
    """How many more are served one after the other: at least so many, once the other gateway has given back what
    it does not use, which is when it gets to it; and then until nobody has been served for a while."""
    served, refused_s = 0, time.monotonic()
    ends_s = refused_s + LONG_S
    while time.monotonic() < (ends_s if served < least else refused_s + quiet_s):
        reply = ask(fleet.gateways[0], key, model)
        if reply.status == 200:
            served, refused_s = served + 1, time.monotonic()
        else:
            assert (reply.status, reply.code) == (402, code)
            time.sleep(0.3)
    return served


def test_a_gateway_that_is_killed_takes_nothing_along(fleet: Fleet) -> None:
    """Places, requests and money: what it served counts, and so do requests that had entered, as nobody can say
    whether they were answered; their places and their money are free when the leases have ended."""
    places, budget = 12, 40
    limits = [
        {"measure": "concurrency", "amount": str(places)},
        {"measure": "requests", "amount": str(budget + places), "span": "day"},
        {"measure": "spend", "amount": usd(budget * PAID_NANO), "span": "day"},
    ]
    survivor = fleet.gateways[0]
    key = new_key(survivor, "rich", limits)
    with fleet.another("doomed") as doomed:
        before = asyncio.run(crowd([doomed], key, 5, PAID)).served
        assert before == 5
        until(lambda: _booked(doomed, key) == before or None)
        fleet.provider.hold()
        replies, killed_s = asyncio.run(_kill_under_way(fleet, doomed, key, places))
        fleet.provider.release()
        status = ask(survivor, key, PAID).status
        assert status == 429 or time.monotonic() > killed_s + AT_ONCE_S, "places are free while their lease runs"
    assert (replies.broken, replies.served) == (places, 0)
    until(lambda: ask(survivor, key, PAID).status == 200 or None)
    assert before + 1 + _until_all_are_served(survivor, key, budget - before - 1) == budget
    assert fleet.findings() == []


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_credits_that_a_killed_gateway_had_put_aside_come_back(fleet: Fleet) -> None:
    """After three minutes, all of them, less what its ended requests came to."""
    n, served, under_way = 20, 5, 4
    survivor = fleet.gateways[0]
    fleet.credit("lender", n * PAID_NANO)
    key = new_key(survivor, "lender")
    with fleet.another("doomed-2") as doomed:
        assert asyncio.run(crowd([doomed], key, served, PAID)).served == served
        until(lambda: _booked(doomed, key) == served or None)
        fleet.provider.hold()
        asyncio.run(_kill_under_way(fleet, doomed, key, under_way))
    fleet.provider.release()
    ends_s = time.monotonic() + 240
    while served < n and time.monotonic() < ends_s:
        replies = asyncio.run(crowd([survivor], key, min(5, n - served), PAID))
        served += replies.served
        assert {reply.code for reply in replies.refused} <= {"insufficient_credit"}
        if replies.refused:
            time.sleep(2)
    assert served == n
    assert ask(survivor, key, PAID).code == "insufficient_credit"
    until(lambda: fleet.findings() == [] or None)


def _key_id(gateway: Gateway, key: str) -> str:
    (key_id,) = (row["key_id"] for row in gateway.admin("/admin/keys")["keys"] if key.startswith(row["prefix"]))
    return str(key_id)


def _booked(gateway: Gateway, key: str) -> int:
    """How many of a key's requests are in the ledger with what they cost."""
    key_id = _key_id(gateway, key)
    rows = gateway.admin("/admin/requests")
    return sum(row["key_id"] == key_id and row["charge_nano"] > 0 and row["event_seq"] > 0 for row in rows)


async def _kill_under_way(fleet: Fleet, doomed: Gateway, key: str, places: int) -> tuple[crowds.Replies, float]:
    """What its callers were told, and when it was killed."""
    asking = asyncio.create_task(crowd([doomed], key, places, PAID))
    async with asyncio.timeout(LONG_S):
        while fleet.provider.at_once < places:
            await asyncio.sleep(0.02)
    doomed.process.kill()
    killed_s = time.monotonic()
    return await asking, killed_s


def _until_all_are_served(gateway: Gateway, key: str, count: int) -> int:
    """The dead gateway's part of the day comes back once the ledger was read again, five seconds later."""
    served, ends_s = 0, time.monotonic() + LONG_S
    while served < count and time.monotonic() < ends_s:
        replies = asyncio.run(crowd([gateway], key, min(5, count - served), PAID))
        served += replies.served
        if replies.refused:
            time.sleep(0.5)
    assert ask(gateway, key, PAID).status in (402, 429)
    return served


def test_without_redis_own_machines_serve_and_nothing_is_spent(fleet: Fleet) -> None:
    n = 10
    limits = [
        {"measure": "requests", "amount": "100000", "span": "minute"},
        {"measure": "requests", "amount": "1000000", "span": "day"},
        {"measure": "tokens", "amount": "10000000", "span": "day"},
        {"measure": "concurrency", "amount": "100"},
        {"measure": "spend", "amount": usd(n * PAID_NANO), "span": "day"},
    ]
    key = new_key(fleet.gateways[0], "rich", limits)
    with _always_asking(fleet, key) as statuses:
        _lose_redis(fleet, key, n)
        until(lambda: statuses.total() > 200 or None)
    assert set(statuses) == {200}
    assert fleet.findings() == []


@contextmanager
def _always_asking(fleet: Fleet, key: str) -> Iterator[Counter[int]]:
    """A crowd at both gateways that wants no money, from the begin of the block to its end; what it was told."""
    statuses: Counter[int] = Counter()
    ended = threading.Event()

    def ask_on() -> None:
        while not ended.is_set():
            replies = asyncio.run(crowd(fleet.gateways, key, 20, FREE))
            statuses.update(replies.statuses() + Counter({0: replies.broken}))
            ended.wait(0.2)

    asking = threading.Thread(target=ask_on)
    asking.start()
    try:
        yield statuses
    finally:
        ended.set()
        asking.join()


def _lose_redis(fleet: Fleet, key: str, n: int) -> None:
    """Kill it and start it again, empty; n paid requests are served in all."""
    twice = (gateway for gateway in fleet.gateways for _ in range(2))
    served = sum(until(partial(_served_or_waiting, gateway, key)) for gateway in twice)
    assert served == 4
    fleet.redis.kill()
    until_s = time.monotonic() + 4
    codes, from_slices = set(), 0
    while time.monotonic() < until_s:
        for gateway in fleet.gateways:
            free, paid = ask(gateway, key, FREE), ask(gateway, key, PAID)
            assert free.status == 200, free.body
            from_slices += paid.status == 200
            codes.add(paid.code)
    assert codes <= {None, "budget_unavailable"}
    for gateway in fleet.gateways:
        refused = ask(gateway, key, PAID)
        assert refused.status == 503
        assert int(refused.headers["retry-after"]) > 0
        assert "USD a day for this key" in refused.message
    fleet.redis.start()
    for gateway in fleet.gateways:
        served += until(partial(_served_or_waiting, gateway, key))
    # What was spent from slices that were drawn before is in the ledger, and counts once.
    served += from_slices
    assert served + _take_the_rest(fleet, key, PAID, "budget_exceeded", n - served, quiet_s=3) == n


def _served_or_waiting(gateway: Gateway, key: str) -> int | None:
    """1 once it is served; None while Redis, or the ledger on a busy machine, has not answered in time."""
    reply = ask(gateway, key, PAID)
    assert (reply.status, reply.code) in ((200, None), (503, "budget_unavailable")), reply.body
    return 1 if reply.status == 200 else None
