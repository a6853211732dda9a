"""The console's benchmark: a load keeps its rate, news are told from silence, ratios are of pairs."""

import asyncio
from collections import Counter
from typing import ClassVar

import pytest

from bench.console.main import Block, Pair, Window, silences, table
from bench.console.viewers import Look, RecordingSink, Viewer
from bench.gateway.load import Order, Quantiles, Saw, run

ANSWER = b'HTTP/1.1 200 OK\r\ncontent-length: 14\r\n\r\n{"choices":[]}'
STREAM = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


class Counting(asyncio.Protocol):
    """Answers at once, and notes whose key asked."""

    asked: ClassVar[Counter[bytes]] = Counter()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        head, _, _ = data.partition(b"\r\n\r\n")
        self.asked[head.partition(b"Bearer ")[2].partition(b"\r\n")[0]] += 1
        self._transport.write(ANSWER)


@pytest.mark.anyio
async def test_a_steady_load_asks_no_faster_than_it_is_told_and_with_all_keys_in_turn() -> None:
    server = await asyncio.get_running_loop().create_server(Counting, "127.0.0.1", 0)
    async with server:
        base_url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        saw = await run(
            Order(base_url=base_url, key="a", others=("b", "c"), model="m", connections=4, seconds=1.5, per_s=50.0)
        )
    assert saw.errors == {}
    assert 1 <= saw.answered <= 75
    assert sum(Counting.asked.values()) == saw.answered
    assert max(Counting.asked.values()) - min(Counting.asked[key] for key in (b"a", b"b", b"c")) <= 1


def test_news_are_what_changes_a_page_and_not_what_keeps_its_stream_alive() -> None:
    viewer = Viewer(Look("ann", "c=1", "/live"), "host")
    viewer.data_received(STREAM + b"9\r\n: here\n\n\n\r\n")
    assert viewer.heard.at_ns == []
    viewer.data_received(b"9\r\ndata: x\n\n\r\n")
    assert (viewer.heard.status, len(viewer.heard.at_ns), viewer.heard.has_ended) == (200, 1, False)
    viewer.data_received(b"0\r\n\r\n")
    assert viewer.heard.has_ended


def test_a_silence_is_the_longest_of_any_viewer_of_a_page() -> None:
    second = 10**9
    heard = [
        RecordingSink("ann", "/a", at_ns=[0, 3 * second, 4 * second]),
        RecordingSink("ben", "/a", at_ns=[2 * second, 30 * second]),
        RecordingSink("ann", "/b"),
    ]
    assert silences(heard, second, 10 * second) == {"/a": 8.0, "/b": 9.0}


def window(answered: int, seconds: float, cpu_s: float) -> Window:
    latency = Quantiles(100.0, 200.0)
    return Window(Saw(answered=answered, seconds=seconds, errors={}, latency=latency, transit=None), cpu_s)


def test_a_loss_is_of_the_pairs_own_blocks() -> None:
    pair = Pair(
        Block(window(1000, 20.0, 1.0), window(20_000, 5.0, 4.0)),
        Block(window(1000, 20.0, 1.6), window(18_000, 5.0, 4.0), {"/console/models/live": (2.0, 3.5)}),
    )
    assert pair.taken == pytest.approx(0.03)
    assert pair.lost == pytest.approx(0.1)
    assert pair.lost_per_s == pytest.approx(0.1)
    shown = table([pair])
    assert "taken by pages under the steady load | 3.0% | 3.0% to 3.0% | < 5% |" in shown
    assert "| /console/models | 2.0 | 3.5 |" in shown
