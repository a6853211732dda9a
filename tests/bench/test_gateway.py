"""The gateway's benchmark: answers are counted as they are, and ratios are of windows that stood side by side."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from bench.gateway.arena import Start, Window
from bench.gateway.load import Order, Quantiles, Saw, run
from bench.gateway.rounds import CROWD, MANY, ONE, SOME, Results
from bench.gateway.upstream import Upstream
from bench.gateway.verdicts import figures


@asynccontextmanager
async def listening(answer: type[asyncio.Protocol]) -> AsyncIterator[str]:
    server = await asyncio.get_running_loop().create_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"


def order(base_url: str, events: int = 0) -> Order:
    wanted = {"key": "k", "model": "mock", "connections": 3, "seconds": 20.0, "requests_max": 12}
    return Order(base_url=base_url, events=events, pause_us=1000, **wanted)  # type: ignore[arg-type]


@pytest.mark.anyio
@pytest.mark.parametrize("events", [0, 5])
async def test_answers_and_streams_of_the_upstream_are_whole(events: int) -> None:
    async with listening(Upstream) as base_url:
        saw = await run(order(base_url, events))
    assert (saw.answered, saw.errors) == (12, {})
    assert saw.latency
    assert (saw.transit is None) == (events == 0)


class Liar(asyncio.Protocol):
    """Status 200 and a stream that ends early, then a hang-up in the middle."""

    answers = (
        b"HTTP/1.1 200 OK\r\ncontent-length: 14\r\n\r\ndata: [DONE]\n\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\ndata: ",
    )

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport, self._left = transport, list(self.answers)

    def data_received(self, data: bytes) -> None:
        self._transport.write(self._left.pop(0))
        if not self._left:
            self._transport.close()


@pytest.mark.anyio
async def test_what_is_not_whole_is_an_error_whatever_its_status() -> None:
    async with listening(Liar) as base_url:
        saw = await run(order(base_url, events=5))
    assert saw.answered == 0
    assert saw.errors == {"stream not whole": 6, "cut off": 6}
    assert saw.requests == 12


def window(cpu_us: float, p50_us: float = 100.0) -> Window:
    quantiles = Quantiles(p50_us, p50_us * 2)
    saw = Saw(answered=90, seconds=1.0, errors={"503": 10}, latency=quantiles, transit=quantiles)
    return Window(saw, cpu_us * 100 / 1e6, 5.0)


def test_figures_compare_windows_of_one_round_and_say_what_is_missing() -> None:
    results = Results(starts={"millrace": Start(1.0, 1.0, 100.0)}, rss_after_mb={"millrace": 130.0})
    for scenario, ours, theirs in ((SOME, [40.0, 60.0], [10.0, 30.0]), (MANY, [50.0], [10.0])):
        results.windows["millrace", scenario.name] = [window(cpu_us) for cpu_us in ours]
        results.windows["nginx", scenario.name] = [window(cpu_us) for cpu_us in theirs]
    results.windows["millrace", ONE.name] = [window(1, 450.0)]
    results.windows["direct", ONE.name] = [window(1, 50.0)]
    results.windows["millrace", CROWD.name] = [window(1)]
    found = {figure.name: figure for figure in figures(results)}
    over_nginx = found["CPU per request, over nginx"]
    assert over_nginx.values == pytest.approx([2, 4, 5])
    assert over_nginx.value == pytest.approx(4)
    assert over_nginx.reached == "must"
    added = found["p50 added at one connection"]
    assert added.value == pytest.approx(0.4)
    assert added.reached == "must"
    assert found["streams a second, 256 at 50 events/s"].reached == "missed"
    assert found["CPU per request, over SGLang's router"].reached == "not measured"
    assert found["RSS after all rounds"].reached == "missed"
    assert found["CPU until it answers"].reached == "aim"
