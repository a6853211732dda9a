"""The leader's server: which clients it admits, how it answers nonsense, and that messages arrive unchanged."""

import logging
import socket
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import ExitStack, closing, contextmanager

import msgspec
import pytest

from accounting.errors import (
    AlreadyResolved,
    IdempotencyConflict,
    InsufficientCredit,
    LedgerBusy,
    LedgerError,
    PostingInvalid,
    UsageBooked,
)
from accounting.ledger.postings import Posted, Posting
from accounting.replication import credentials
from accounting.replication.client import LeaderConnection
from accounting.replication.credentials import Credentials, make_credentials
from accounting.replication.errors import FrameInvalid, LeaderAway
from accounting.replication.frames import (
    EVENTS_MAX,
    FRAME_BYTES_MAX,
    pack_answers,
    pack_events,
    read_frame,
    unpack_answers,
    unpack_events,
)
from accounting.replication.handshakes import OF_ONE_ADDRESS_MAX, UNDER_WAY_MAX, Handshakes
from accounting.replication.leader_lease import Leader
from accounting.replication.server import CONNECTIONS_MAX, HANDSHAKE_S, LeaderServer
from accounting.replication.shared import with_port
from accounting.rules import local
from tests.accounting.ledgers import ANSWER_S, usage
from tests.accounting.sharing_gateway import credit


def _busy(_: Posting) -> "Future[Posted]":
    raise LedgerBusy("try later")


@contextmanager
def server(*partners: Credentials) -> Iterator[tuple[Leader, str]]:
    """The server of a leader whose writer is busy, and the certificate that it has."""
    own = make_credentials("server")
    opened = LeaderServer(own, lambda: {each.fingerprint: each.certificate for each in partners}, _busy)
    port = opened.listen("127.0.0.1", 0)
    opened.open()
    try:
        yield Leader(1, "server", f"127.0.0.1:{port}", own.fingerprint, is_live=True), own.certificate
    finally:
        opened.close()


def test_the_door_knows_whom_it_lets_in_and_who_comes_knows_the_door() -> None:
    partner, stranger = make_credentials("partner"), make_credentials("stranger")
    with server(partner) as (leader, certificate):
        with closing(LeaderConnection.dial(leader, partner, certificate)) as link:
            assert [type(answer) for answer in link.ask([credit("c1"), credit("c2")])] == [LedgerBusy] * 2
        with pytest.raises(LeaderAway), closing(LeaderConnection.dial(leader, stranger, certificate)) as link:
            link.ask([credit("c1")])
        with pytest.raises(LeaderAway, match="not the expected leader"):
            LeaderConnection.dial(leader, partner, stranger.certificate)


def test_the_door_ends_a_link_that_says_nonsense_and_stays(caplog: pytest.LogCaptureFixture) -> None:
    partner = make_credentials("partner")
    with server(partner) as (leader, certificate):
        host, _, port = leader.address.partition(":")
        for nonsense in (
            b"GET / HTTP/1.1\r\n\r\n",
            b"\x00\x00\x00\x05nope!",
            (FRAME_BYTES_MAX + 1).to_bytes(4, "big"),
        ):
            with (
                socket.create_connection((host, int(port)), ANSWER_S) as bare,
                partner.client_context(certificate).wrap_socket(bare) as rude,
            ):
                rude.sendall(nonsense)
                assert rude.recv(1) == b""
        with socket.create_connection((host, int(port)), ANSWER_S) as bare:
            bare.sendall(b"no TLS at all")
        with closing(LeaderConnection.dial(leader, partner, certificate)) as link:
            assert len(link.ask([credit("c1")])) == 1
    assert "invalid events" in caplog.text


def _address(leader: Leader) -> tuple[str, int]:
    host, _, port = leader.address.partition(":")
    return host, int(port)


def test_strangers_who_say_nothing_keep_no_gateway_out(caplog: pytest.LogCaptureFixture) -> None:
    partner = make_credentials("partner")
    with server(partner) as (leader, certificate), ExitStack() as stack:
        for _ in range(CONNECTIONS_MAX + 1):
            stack.enter_context(socket.create_connection(_address(leader), ANSWER_S))
        with closing(LeaderConnection.dial(leader, partner, certificate)) as link:
            assert len(link.ask([credit("c1")])) == 1
    assert [each for each in caplog.records if each.levelno > logging.INFO] == []


def test_newcomers_are_few_and_the_oldest_of_the_busiest_address_goes() -> None:
    handshakes = Handshakes[int]()
    assert [handshakes.enter(number, "one") for number in range(OF_ONE_ADDRESS_MAX + 1)][-2:] == [None, 0]
    others = [handshakes.enter(100 + number, f"other{number}") for number in range(UNDER_WAY_MAX)]
    assert others[-OF_ONE_ADDRESS_MAX:] == [*range(1, OF_ONE_ADDRESS_MAX), 8]
    assert len(handshakes) == UNDER_WAY_MAX


def test_who_shakes_hands_with_a_door_that_is_shut_is_sent_away(caplog: pytest.LogCaptureFixture) -> None:
    own, partner = make_credentials("server"), make_credentials("partner")
    opened = LeaderServer(own, lambda: {partner.fingerprint: partner.certificate}, _busy)
    port = opened.listen("127.0.0.1", 0)
    opened.open()
    with socket.create_connection(("127.0.0.1", port), ANSWER_S) as waiting:
        opened.shut()
        waiting.settimeout(HANDSHAKE_S + ANSWER_S)
        assert waiting.recv(1) == b""
    opened.close()
    assert caplog.text == ""


def test_only_equals_follow_one_another(monkeypatch: pytest.MonkeyPatch) -> None:
    partner = make_credentials("partner")
    with server(partner) as (leader, certificate):
        older = partner.client_context(certificate)
        older.set_alpn_protocols(["millrace-ledger/0"])
        with (
            socket.create_connection(_address(leader), ANSWER_S) as bare,
            older.wrap_socket(bare) as link,
        ):
            assert link.recv(1) == b""
        monkeypatch.setattr(credentials, "PROTOCOL", "millrace-ledger/2")
        with pytest.raises(LeaderAway, match="does not speak millrace-ledger/2"):
            LeaderConnection.dial(leader, partner, certificate)


def test_an_event_that_cannot_be_read_is_refused_alone() -> None:
    partner, encode = make_credentials("partner"), msgspec.msgpack.encode
    events = [msgspec.Raw(encode(each)) for each in (credit("c1"), {"kind": "newer"}, credit("c2"))]
    frame = encode(events)
    with server(partner) as (leader, certificate):
        context = partner.client_context(certificate)
        with socket.create_connection(_address(leader), ANSWER_S) as bare, context.wrap_socket(bare) as link:
            link.sendall(len(frame).to_bytes(4, "big") + frame)
            answers = unpack_answers(read_frame(link))
    assert [type(answer) for answer in answers] == [LedgerBusy, PostingInvalid, LedgerBusy]


@pytest.mark.parametrize(
    "answer",
    [
        Posted(7, (8, 9), replayed=True),
        InsufficientCredit("user:ann:paid", 10**18, -5),
        IdempotencyConflict("hold:r1"),
        UsageBooked(frozenset({"r1", "r2"})),
        AlreadyResolved("by a capture"),
        LedgerBusy("8192 journal entries wait to be posted"),
        LeaderAway("nobody leads"),
    ],
)
def test_answers_arrive_as_they_were_sent(answer: Posted | LedgerError) -> None:
    (arrived,) = unpack_answers(pack_answers([answer])[4:])
    if isinstance(answer, Posted):
        assert arrived == answer
    else:
        assert isinstance(answer, type(arrived))
        assert (str(arrived), vars(arrived)) == (str(answer), vars(answer))


def test_events_arrive_as_they_were_sent_in_as_many_frames_as_they_need() -> None:
    postings = [credit(f"c{n}") for n in range(EVENTS_MAX + 1)]
    postings.append(local.local_uses([usage(f"r{n}") for n in range(3)]))
    frames = pack_events(postings)
    assert len(frames) == 2
    assert [posting for frame in frames for posting in unpack_events(frame[4:])] == postings
    with pytest.raises(FrameInvalid):
        unpack_events(b"\x93\x01")


@pytest.mark.parametrize(
    ("address", "whole"),
    [
        ("10.0.0.3", "10.0.0.3:9"),
        ("10.0.0.3:80", "10.0.0.3:80"),
        ("fd00::1", "[fd00::1]:9"),
        ("[fd00::1]", "[fd00::1]:9"),
        ("[fd00::1]:80", "[fd00::1]:80"),
        ("ledger.example", "ledger.example:9"),
    ],
)
def test_an_address_has_its_port_or_gets_the_door_s(address: str, whole: str) -> None:
    assert with_port(address, 9) == whole
