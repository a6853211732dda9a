"""A head that was parsed before is not parsed again: only what a parser would read the same way passes for it."""

import asyncio
import re
from pathlib import Path

import httptools
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.http.repeated import RepeatedHead
from tests.gateway.http.edges import Writer, backend, edge, question, whole
from tests.gateway.http.test_hot import ANSWER

HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nContent-Length: %d\r\naccept: */*\r\n\r\n"
BODY = b'{"model": "m"}'
MESSAGE = HEAD % len(BODY) + BODY


class Parsed:
    """What a parser makes of bytes: whole messages, and how many were begun."""

    def __init__(self, data: bytes) -> None:
        self.url = self.body = b""
        self.headers: list[tuple[bytes, bytes]] = []
        self.begun = self.ended = 0
        httptools.HttpRequestParser(self).feed_data(data)

    def on_message_begin(self) -> None:
        self.begun += 1

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() != b"content-length":
            self.headers.append((name, value))

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.ended += 1


def learnt() -> RepeatedHead[str]:
    head: RepeatedHead[str] = RepeatedHead()
    head.learn(MESSAGE, "known")
    return head


@given(
    body=st.binary(max_size=40) | st.just(MESSAGE),
    length=st.integers(0, 50) | st.sampled_from([b"+14", b"1_4", b" 14", b"14 ", b"014", b"0x0e", b"", b"\xb2"]),
    at=st.integers(0, len(MESSAGE) + 40),
    instead=st.binary(max_size=3) | st.sampled_from([b"\r\n", b"\r\n\r\n", b"transfer-encoding: chunked\r\n"]),
    cut=st.integers(0, 2),
)
def test_what_passes_for_a_repeated_head_is_what_a_parser_reads(
    body: bytes, length: int | bytes, at: int, instead: bytes, cut: int
) -> None:
    said = b"%d" % length if isinstance(length, int) else length
    data = HEAD.replace(b"%d", said) + body
    data = data[:at] + instead + data[at + cut :]
    if found := learnt().body_in(data):
        parsed, first = Parsed(data), Parsed(MESSAGE)
        assert (parsed.begun, parsed.ended, parsed.body) == (1, 1, found)
        assert (parsed.url, parsed.headers) == (first.url, first.headers)


@given(st.binary(min_size=1, max_size=2000))
def test_another_length_is_the_same_head(body: bytes) -> None:
    assert learnt().body_in(HEAD % len(body) + body) == body


@pytest.mark.parametrize(
    "message",
    [
        MESSAGE + b"x",
        MESSAGE[:-1],
        MESSAGE.replace(b"accept: */*", b"content-length: 14"),
        MESSAGE.replace(b"Content-Length: 14", b"transfer-encoding: chunked"),
    ],
)
def test_what_is_no_single_message_with_one_length_is_not_learnt(message: bytes) -> None:
    head: RepeatedHead[str] = RepeatedHead()
    head.learn(message, "known")
    assert head.meaning is None
    assert not head.body_in(message)


def test_looking_for_repeats_is_given_up_where_there_are_none() -> None:
    head: RepeatedHead[str] = RepeatedHead()
    for number in range(100):
        head.learn(MESSAGE.replace(b"host: x", b"host: x%d" % number), "known")
    assert not head.body_in(MESSAGE.replace(b"host: x", b"host: x99"))
    assert head.body_in(MESSAGE.replace(b"host: x", b"host: x7"))


@pytest.mark.anyio
async def test_on_one_connection_repeated_heads_mix_with_others(tmp_path: Path) -> None:
    async def answer(body: bytes, writer: Writer) -> None:
        writer.write(whole(ANSWER, more=b"date: now\r\n"))

    async with backend(answer) as desk, edge(tmp_path, desk.base_url) as running:
        reader, writer = await running.connect()
        short, long = question(), question(user="somebody with a longer name")
        other = running.request(short).replace(running.key.encode(), b"mr-wrong")
        garbage = running.request(b"{")
        asked = [running.request(short), running.request(long), other, garbage, running.request(short)]
        asked += [b"GET /nowhere HTTP/1.1\r\nhost: x\r\n\r\n", running.request(long), running.request(short)]
        statuses = []
        for one in asked * 2:
            writer.write(one)
            statuses.append(await _status(reader))
        last = running.request(long)
        for part in (last[:-5], last[-5:] + last + last[:50], last[50:]):
            writer.write(part)
            await asyncio.sleep(0.05)
        statuses += [await _status(reader) for _ in range(3)]
        writer.close()
        assert statuses == [200, 200, 401, 400, 200, 404, 200, 200] * 2 + [200] * 3
        assert desk.requests == [short, long, short, long, short] * 2 + [long] * 3
        assert desk.connections == 1


async def _status(reader: asyncio.StreamReader) -> int:
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60)
    length = re.search(rb"content-length: (\d+)", head)
    assert length
    await reader.readexactly(int(length[1]))
    return int(head.split()[1])
