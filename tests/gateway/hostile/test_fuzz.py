"""Requests with bytes changed at random: never our fault, and nobody is answered whom h11 did not understand."""

import re
import socket
from uuid import uuid4

import h11
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.gateway.hostile.range import Range, question

PATIENCE_S = 0.15
TOKENS = (
    b"\r\n",
    b"\n",
    b"\r",
    b"\x00",
    b" ",
    b"\t",
    b":",
    b"\xff",
    b"content-length: 5\r\n",
    b"content-length: 0\r\n",
    b"transfer-encoding: chunked\r\n",
    b"transfer-encoding: identity\r\n",
    b"host: y\r\n",
    b"\r\n\r\n",
    b"0\r\n\r\n",
    b"expect: 100-continue\r\n",
    b"connection: upgrade\r\nupgrade: h2c\r\n",
    b"connection: close\r\n",
    b"HTTP/1.1",
    b"HTTP/1.0",
    b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n",
    b"{",
    b"5\r\nhello\r\n",
    b";a=b",
    b",",
    b"chunked",
)
# Words of a first line may stand further apart than by one space (RFC 9112, 3); h11 does not use that liberty.
_SPACES = re.compile(rb"\A([!-~]+) +([!-~]+) +(HTTP/)")

# Where, how many bytes go, and what comes in their place.
changes = st.lists(
    st.tuples(st.integers(0, 500), st.integers(0, 4), st.sampled_from(TOKENS) | st.binary(max_size=3)), max_size=4
)


def bases(target: Range, mark: str) -> list[bytes]:
    body = question(user=mark)
    get = b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n"
    chunks = b"5\r\n%b\r\n%x\r\n%b\r\n0\r\n\r\n" % (body[:5], len(body) - 5, body[5:])
    plain, chunked = target.request(body), target.head(b"transfer-encoding: chunked\r\n") + chunks
    last = target.request(body, b"connection: close\r\n")
    return [
        plain + get + last,
        chunked + last,
        get + chunked + get,
        last,
        chunked.replace(b"x\r\n", b"x\r\nconnection: close\r\n", 1),
    ]


def changed(raw: bytes, wanted: list[tuple[int, int, bytes]]) -> bytes:
    for at, gone, new in wanted:
        at %= len(raw)
        raw = raw[:at] + new + raw[at + gone :]
    return raw


def understood(raw: bytes) -> list[bytes]:
    """The bodies of all whole requests before the first mistake."""
    bodies: list[bytes] = []
    rest: bytes | None = raw
    while rest:
        body, rest = _one(rest.lstrip(b"\r\n"))  # empty lines between requests are nobody's mistake
        bodies += [] if body is None else [body]
    return bodies


def _one(raw: bytes) -> tuple[bytes | None, bytes | None]:
    """A whole request's body, and what stands behind it, if that may be a request."""
    connection, body = h11.Connection(h11.SERVER, max_incomplete_event_size=2**20), b""
    connection.receive_data(_SPACES.sub(rb"\1 \2 \3", raw))
    try:
        while not isinstance(event := connection.next_event(), h11.EndOfMessage):
            if event in (h11.NEED_DATA, h11.PAUSED) or isinstance(event, h11.ConnectionClosed):
                return None, None
            body += event.data if isinstance(event, h11.Data) else b""
    except h11.RemoteProtocolError:
        return None, None
    connection.send(h11.Response(status_code=200, headers=[("content-length", "0")]))
    connection.send(h11.EndOfMessage())
    return body, connection.trailing_data[0] if connection.our_state is h11.DONE else None


def answered(target: Range, raw: bytes) -> list[int]:
    """The statuses that come back, until there is silence."""
    received = b""
    with target.connected() as made:
        try:
            made.sendall(raw)
            made.settimeout(PATIENCE_S)
            while part := made.recv(2**16):
                received += part
        except OSError:
            pass
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3}) ", received) if status != b"100"]


def check(target: Range, base: int, wanted: list[tuple[int, int, bytes]]) -> None:
    mark = uuid4().hex  # what comes late of another example is not this one's
    choices = bases(target, mark)
    raw = changed(choices[base % len(choices)], wanted)
    bodies = understood(raw)
    statuses = answered(target, raw)
    assert all(status < 500 for status in statuses), (raw, statuses)
    good = [status for status in statuses if status == 200]
    assert len(good) <= len(bodies), (raw, statuses, bodies)
    if mark.encode() in target.upstream.last_body:
        assert target.upstream.last_body in bodies, (raw, target.upstream.last_body, bodies)


@settings(max_examples=examples(20, 60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(base=st.integers(0, 4), wanted=changes)
@example(base=0, wanted=[])
@example(base=1, wanted=[])
@example(base=1, wanted=[(293, 0, b" ")])
def test_an_answered_request_was_understood(
    target: Range, base: int, wanted: list[tuple[int, int, bytes]]
) -> None:
    check(target, base, wanted)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@settings(max_examples=5000, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(base=st.integers(0, 4), wanted=changes)
def test_an_answered_request_was_understood_at_length(
    target: Range, base: int, wanted: list[tuple[int, int, bytes]]
) -> None:
    check(target, base, wanted)


@settings(max_examples=examples(20, 60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(raw=st.binary(max_size=200), cuts=st.lists(st.integers(0, 200), max_size=3))
def test_noise_is_refused(target: Range, raw: bytes, cuts: list[int]) -> None:
    assert all(400 <= status < 500 for status in answered(target, raw + b"\r\n\r\n"))


def test_all_is_well_after_that(target: Range) -> None:
    target.assert_well()
    with socket.create_connection(("127.0.0.1", target.port), timeout=60):
        target.assert_well()
