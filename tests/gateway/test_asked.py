"""Keys of the accounting API in the database: one answers, however many ask, and what is old is forgotten."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import Engine, func, select

from gateway.billing.asked import ANSWERS_KEPT_S, Answer, AskedBefore, Claim
from gateway.billing.tables import idempotent_request_table
from gateway.errors import KeyInUse
from runtime.database import open_engine, write_sessions
from runtime.errors import Conflict

ASKING = 8
NS = 10**9


@pytest.fixture
def engine(dsn: str) -> Iterator[Engine]:
    engine = open_engine(dsn, pool_size=ASKING)
    yield engine
    engine.dispose()


def test_of_many_who_ask_at_once_one_answers(engine: Engine) -> None:
    gateways = [AskedBefore(write_sessions(engine)) for _ in range(ASKING)]

    def begin(gateway: AskedBefore) -> Answer | Claim | None:
        try:
            return gateway.begin("user:ann", "k", b"body")
        except KeyInUse as error:
            assert error.retry_after_s >= 1
            return None

    with ThreadPoolExecutor(ASKING) as pool:
        begun = list(pool.map(begin, gateways))
    claims = [found for found in begun if isinstance(found, Claim)]
    assert (len(claims), begun.count(None)) == (1, ASKING - 1)
    gateways[0].end(claims[0], Answer(402, b"too dear"))
    assert begin(gateways[1]) == Answer(402, b"too dear")
    with pytest.raises(Conflict, match="another request"):
        gateways[1].begin("user:ann", "k", b"other body")
    assert isinstance(gateways[1].begin("user:bob", "k", b"other body"), Claim)


def test_what_a_gateway_that_is_alone_had_begun_in_another_life_is_nobody_s(engine: Engine) -> None:
    write = write_sessions(engine)
    before, after = AskedBefore(write, is_alone=True), AskedBefore(write, is_alone=True)
    assert isinstance(before.begin("machine", "k", b""), Claim)
    with pytest.raises(KeyInUse):
        before.begin("machine", "k", b"")
    assert isinstance(after.begin("machine", "k", b""), Claim)


def test_who_comes_too_late_changes_no_answer_and_old_ones_are_forgotten(engine: Engine) -> None:
    now_ns = [10**18]
    asked = AskedBefore(write_sessions(engine), lambda: now_ns[0])
    slow = asked.begin("user:ann", "k", b"")
    now_ns[0] += 61 * NS
    quick = asked.begin("user:ann", "k", b"")
    assert isinstance(slow, Claim)
    assert isinstance(quick, Claim)
    asked.end(quick, Answer(200, b"quick"))
    asked.end(slow, Answer(200, b"slow"))
    asked.forget(slow)
    assert asked.begin("user:ann", "k", b"") == Answer(200, b"quick")
    now_ns[0] += (ANSWERS_KEPT_S + 1) * NS
    AskedBefore(write_sessions(engine), lambda: now_ns[0]).begin("user:ann", "new", b"")
    with write_sessions(engine)() as session:
        assert session.scalar(select(func.count()).select_from(idempotent_request_table)) == 1
