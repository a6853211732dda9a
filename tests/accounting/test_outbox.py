"""The outbox between gateways: messages arrive unchanged, only the leader answers, and no sender holds up others."""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager

import msgspec
import pytest
from sqlalchemy import Engine, func, select, text

from accounting.errors import (
    AlreadyResolved,
    IdempotencyConflict,
    InsufficientCredit,
    LedgerBusy,
    LedgerError,
    PosterStopped,
    PostingInvalid,
    UsageBooked,
)
from accounting.ledger.postings import Posted, Posting
from accounting.replication import messages
from accounting.replication.client import LeaderClient
from accounting.replication.errors import LeaderAway, MessageInvalid
from accounting.replication.messages import (
    PROTOCOL,
    Reply,
    pack_answers,
    pack_events,
    unpack_answers,
    unpack_events,
)
from accounting.replication.outbox import KEPT_S, ROWS_AT_ONCE, ROWS_MAX, Outbox
from accounting.replication.server import LeaderServer
from accounting.replication.tables import leader_table, outbox_table
from accounting.rules import local
from runtime.database import open_engine, write_sessions
from tests.accounting.ledgers import ANSWER_S, usage
from tests.accounting.sharing_gateway import credit
from tests.databases import Databases

EPOCH = 7
LEADER, FOLLOWER, OTHER = "leader-00001", "follower-001", "follower-002"
POSTED = Posted(5, (6,))


@pytest.fixture
def shared(databases: Databases) -> Iterator[Engine]:
    """A PostgreSQL that a process of another epoch does not lead."""
    with databases.database("postgresql") as dsn:
        engine = open_engine(dsn)
        with engine.begin() as connection:
            connection.execute(leader_table.update().values(epoch=EPOCH))
        yield engine
        engine.dispose()


def _book(_: Posting) -> "Future[Posted]":
    future: Future[Posted] = Future()
    future.set_result(POSTED)
    return future


@contextmanager
def server(engine: Engine, submit: "Callable[[Posting], Future[Posted]]" = _book) -> Iterator[LeaderServer]:
    running = LeaderServer(write_sessions(engine), LEADER, submit, lambda: EPOCH)
    running.start()
    yield running
    running.stop()


def ask(engine: Engine, postings: Sequence[Posting], wait_s: float = ANSWER_S) -> list[Reply]:
    """What a gateway is told that waits so long."""
    until_s = time.monotonic() + wait_s
    client = LeaderClient(write_sessions(engine), FOLLOWER)
    try:
        return client.ask(postings, lambda: time.monotonic() < until_s)
    finally:
        client.close()


def put(engine: Engine, gateway: str, *events: bytes, age_s: float = 0, reply: bytes | None = None) -> None:
    """Groups of another gateway, which are this old."""
    now_ns = time.time_ns() - round(age_s * 1e9)
    rows = [
        {"sent_ns": now_ns + number, "gateway": gateway, "events": each, "reply": reply}
        for number, each in enumerate(events)
    ]
    with engine.begin() as connection:
        connection.execute(outbox_table.insert(), rows)


def replies(engine: Engine, gateway: str) -> list[bytes | None]:
    query = select(outbox_table.c.reply).where(outbox_table.c.gateway == gateway).order_by(outbox_table.c.sent_ns)
    with engine.connect() as connection:
        return list(connection.scalars(query))


def eventually(happens: Callable[[], bool]) -> None:
    until_s = time.monotonic() + ANSWER_S
    while not happens():
        assert time.monotonic() < until_s
        time.sleep(0.02)


def test_many_groups_are_answered_in_their_order_and_none_stays(shared: Engine) -> None:
    booked = list[str]()

    def book(posting: Posting) -> "Future[Posted]":
        booked.append(posting.idem_key)
        return _book(posting)

    packed = [pack_events([credit(f"c{number}")])[0] for number in range(ROWS_AT_ONCE + 3)]
    put(shared, OTHER, *packed, age_s=1)
    with server(shared, book):
        assert ask(shared, [credit("mine"), credit("mine too")]) == [POSTED, POSTED]
        eventually(lambda: None not in replies(shared, OTHER))
    assert booked == [
        *(f"credit:c{number}" for number in range(ROWS_AT_ONCE + 3)),
        "credit:mine",
        "credit:mine too",
    ]
    assert [unpack_answers(reply or b"") for reply in replies(shared, OTHER)] == [[POSTED]] * len(packed)
    assert replies(shared, FOLLOWER) == []


def test_groups_that_cannot_be_read_are_refused_and_hold_up_no_other(
    shared: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    encode = msgspec.msgpack.encode
    newer = encode((PROTOCOL + 1, [credit("c1")]))
    deep = b"\x92\x01" + b"\x91" * 100_000
    put(
        shared,
        OTHER,
        b"",
        b"GET / HTTP/1.1",
        newer,
        encode((PROTOCOL, 3)),
        deep,
        pack_events([credit("c2")])[0],
        age_s=1,
    )
    with server(shared):
        assert ask(shared, [credit("c3")]) == [POSTED]
        eventually(lambda: None not in replies(shared, OTHER))
    answers = [unpack_answers(reply or b"") for reply in replies(shared, OTHER)]
    assert answers == [[], [], [], [], [], [POSTED]]
    assert caplog.text.count("a group of entries of gateway follower-002 was refused") == 5
    assert "gateways that share a ledger need one version" in caplog.text


def test_an_event_that_cannot_be_read_is_refused_alone(shared: Engine) -> None:
    no_text = msgspec.Raw(b"\x81\xa8idem_key\xa1\xff")
    events = [credit("c1"), {"kind": "newer"}, no_text, credit("c2")]
    put(shared, OTHER, msgspec.msgpack.encode((PROTOCOL, events)))
    with server(shared):
        eventually(lambda: None not in replies(shared, OTHER))
    (reply,) = replies(shared, OTHER)
    assert [type(answer) for answer in unpack_answers(reply or b"")] == [
        Posted,
        PostingInvalid,
        PostingInvalid,
        Posted,
    ]


def test_a_full_outbox_refuses_and_takes_groups_again_once_there_is_room(shared: Engine) -> None:
    put(shared, OTHER, *[b""] * ROWS_MAX)
    with pytest.raises(LeaderAway, match=f"{ROWS_MAX} groups of entries wait"):
        ask(shared, [credit("c1")])
    assert len(replies(shared, OTHER)) == ROWS_MAX
    with shared.begin() as connection:
        connection.execute(outbox_table.delete())
    with server(shared):
        assert ask(shared, [credit("c1")]) == [POSTED]


def test_groups_of_gateways_that_are_gone_are_dropped_unbooked_and_counted(
    shared: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    put(shared, OTHER, *[b""] * ROWS_MAX, age_s=KEPT_S + 1)
    put(shared, FOLLOWER, b"", age_s=KEPT_S + 1, reply=b"never read")
    put(shared, OTHER, pack_events([credit("c1")])[0], age_s=1)
    with server(shared) as running:
        assert ask(shared, [credit("c2")]) == [POSTED]
        eventually(lambda: None not in replies(shared, OTHER))
        assert running.dropped == ROWS_MAX + 1
    assert len(replies(shared, OTHER)) == 1
    assert "129 groups of entries were dropped" in caplog.text


def test_a_gateway_that_reads_no_reply_holds_up_no_other(shared: Engine) -> None:
    """Nor does one whose events the writer has not booked yet."""
    stuck: Future[Posted] = Future()
    with server(shared, lambda posting: stuck if "stuck" in posting.idem_key else _book(posting)):
        put(shared, OTHER, *(pack_events([credit(name)])[0] for name in ("unread", "stuck")))
        for number in range(20):
            assert ask(shared, [credit(f"c{number}")]) == [POSTED]
        assert [reply is None for reply in replies(shared, OTHER)] == [False, True]
        stuck.set_result(POSTED)
        eventually(lambda: None not in replies(shared, OTHER))


def test_without_an_answer_a_gateway_takes_its_group_back(shared: Engine) -> None:
    with pytest.raises(LeaderAway, match="has not answered"):
        ask(shared, [credit("c1")], wait_s=0.3)
    assert replies(shared, FOLLOWER) == []


def _with_group(shared: Engine, statement: str, reply: bytes = b"") -> list[Reply]:
    """What a gateway is told if this happens to its group, of which no notification tells."""

    def act() -> None:
        eventually(lambda: replies(shared, FOLLOWER) == [None])
        with shared.begin() as connection:
            connection.execute(text(statement), {"reply": reply})

    acting = threading.Thread(target=act)
    acting.start()
    try:
        return ask(shared, [credit("c1")])
    finally:
        acting.join()


REPLY = "UPDATE ledger_outbox SET reply = :reply"


def test_a_reply_is_found_without_its_notification(shared: Engine) -> None:
    assert _with_group(shared, REPLY, pack_answers([POSTED])) == [POSTED]
    assert replies(shared, FOLLOWER) == []


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (pack_answers([]), "0 answers for 1 events"),
        (pack_answers([POSTED] * 2), "2 answers for 1 events"),
        (msgspec.msgpack.encode((PROTOCOL + 1, [])), "gateways that share a ledger need one version"),
        (b"yes", "invalid message"),
    ],
)
def test_a_reply_that_does_not_fit_decides_nothing(shared: Engine, reply: bytes, reason: str) -> None:
    with pytest.raises(MessageInvalid, match=reason):
        _with_group(shared, REPLY, reply)


def test_a_group_that_a_crash_took_is_sent_again_by_its_gateway(shared: Engine) -> None:
    with pytest.raises(LeaderAway, match="emptied"):
        _with_group(shared, "TRUNCATE ledger_outbox")
    with shared.connect() as connection:
        persistence = connection.scalar(
            text("SELECT relpersistence FROM pg_class WHERE relname = 'ledger_outbox'")
        )
    assert persistence == "u"


def test_what_a_stopped_writer_leaves_is_for_the_next_leader(shared: Engine) -> None:
    asked = threading.Event()

    def refuse(_: Posting) -> "Future[Posted]":
        asked.set()
        raise PosterStopped("the ledger is closed")

    put(shared, OTHER, pack_events([credit("c1")])[0])
    with server(shared, refuse):
        assert asked.wait(ANSWER_S)
    assert replies(shared, OTHER) == [None]
    with server(shared):
        eventually(lambda: None not in replies(shared, OTHER))
    assert unpack_answers(replies(shared, OTHER)[0] or b"") == [POSTED]


def test_a_deposed_leader_cannot_answer(shared: Engine) -> None:
    """Not even one whose statement began before its successor's claim was there to see."""
    put(shared, OTHER, b"")
    outbox = Outbox(write_sessions(shared), LEADER)
    (group,) = outbox.take([])
    with shared.begin() as connection:
        connection.execute(leader_table.update().values(epoch=EPOCH + 1))
        late = threading.Thread(target=outbox.answer, args=(EPOCH, [(group, b"late")]))
        late.start()
        waiting = text("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
        with shared.connect() as looking:
            eventually(lambda: looking.scalar(waiting) == 1)
        assert late.is_alive()
    late.join()
    assert replies(shared, OTHER) == [None]
    outbox.answer(EPOCH, [(group, b"late")])
    assert replies(shared, OTHER) == [None]
    outbox.answer(EPOCH + 1, [(group, b"in time")])
    outbox.answer(EPOCH + 1, [(group, b"again")])
    assert replies(shared, OTHER) == [b"in time"]
    outbox.close()


def test_a_name_that_no_channel_can_have_is_not_stored(shared: Engine) -> None:
    for gateway in ("", "g" * 64):
        with pytest.raises(Exception, match="ledger_outbox_gateway"):
            put(shared, gateway, b"")


def test_the_server_goes_on_after_its_connection_was_lost(
    shared: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    others = text("SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE query LIKE '%ledger_outbox%'"
                  " AND pid <> pg_backend_pid()")  # fmt: skip
    with server(shared):
        assert ask(shared, [credit("c1")]) == [POSTED]
        with shared.begin() as connection:
            assert (connection.scalar(others) or 0) >= 2
        assert ask(shared, [credit("c2")]) == [POSTED]
    assert "the outbox of the ledger cannot be read or written" in caplog.text
    with shared.connect() as connection:
        assert connection.scalar(select(func.count()).select_from(outbox_table)) == 0


@pytest.mark.parametrize(
    "answer",
    [
        Posted(7, (8, 9), replayed=True),
        InsufficientCredit("user:ann:paid", 10**18, -5),
        IdempotencyConflict("hold:r1"),
        UsageBooked(frozenset({"r1", "r2"})),
        AlreadyResolved("by a capture"),
        LedgerBusy("8192 journal entries wait to be posted"),
        LeaderAway("no gateway leads"),
    ],
)
def test_answers_arrive_as_they_were_sent(answer: Posted | LedgerError) -> None:
    (arrived,) = unpack_answers(pack_answers([answer]))
    if isinstance(answer, Posted):
        assert arrived == answer
    else:
        assert isinstance(answer, type(arrived))
        assert (str(arrived), vars(arrived)) == (str(answer), vars(answer))


def test_events_arrive_as_they_were_sent_in_as_many_messages_as_they_need(
    shared: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "MESSAGE_BYTES", 2_000)
    postings = [credit(f"c{n}") for n in range(40)]
    postings.append(local.local_uses([usage(f"r{n}") for n in range(20)]))
    packed = pack_events(postings)
    assert len(packed) > 2
    assert max(map(len, packed[:-1])) < 2_100
    assert [posting for message in packed for posting in unpack_events(message)] == postings
    with server(shared):
        assert ask(shared, postings) == [POSTED] * 41
    with pytest.raises(MessageInvalid):
        unpack_events(b"\x93\x01")
