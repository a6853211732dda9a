"""A marketplace, a seller behind a tunnel, a buyer without machines: their ledgers agree, also after an outage."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from openai import DefaultHttpxClient, OpenAI

from demo import processes
from demo.market import market as demo_market
from demo.market import party, roles
from demo.market.market import Market, open_market
from demo.market.party import until
from tests.databases import prepared
from tests.gateways import STOP_TIMEOUT_S, ForkedCommand, reading


@pytest.fixture(scope="module", autouse=True)
def forks() -> Iterator[None]:
    """The demo's gateways and agent are forks: as new processes they and their children take 25 s of CPU."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (demo_market, party):
            patch.setattr(module, "running", running)
        yield


@pytest.fixture(scope="module")
def market(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Market]:
    folder = tmp_path_factory.mktemp("market")
    for name in ("marketplace", "seller", "buyer"):
        prepared(folder / name)
    with open_market(folder, nodes=1) as market:
        yield market


def running(command: Sequence[str], environment: Mapping[str, str]) -> AbstractContextManager[Any]:
    """As `demo.processes.running`; `python -m gateway` runs as a fork."""
    if command[0] == "gateway":
        return _forked(list(command[1:]), os.environ | environment)
    return processes.running(command, environment)


@contextmanager
def _forked(words: list[str], environment: dict[str, str]) -> Iterator[ForkedCommand]:
    process = ForkedCommand(words, environment)
    log: list[str] = []
    try:
        with process.stdout, reading(process, log):
            try:
                yield process
            finally:
                _stop(process)
    finally:
        sys.stderr.writelines(log)  # For a failure's report.


def _stop(process: ForkedCommand) -> None:
    with suppress(ProcessLookupError):
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT_S)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.timeout(240)
def test_an_answer_is_bought_booked_three_times_alike_and_paid_out(market: Market) -> None:
    summary = market.trade("What is a river?")
    assert summary["ok"], summary
    assert summary["lane"] == "market"
    assert len(set(summary["ledger"].values())) == 1
    assert summary["payout"]["status"] == "paid"


@pytest.mark.timeout(240)
def test_a_marketplace_that_is_away_stops_no_trade_and_is_told_of_it_to_the_nano(market: Market) -> None:
    outlast_an_outage(market, before=2, during=4, after=2)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_200_purchases_with_the_marketplace_away_in_the_middle(market: Market) -> None:
    outlast_an_outage(market, before=50, during=100, after=50)


def outlast_an_outage(market: Market, before: int, during: int, after: int) -> None:
    """All are served within what was allocated before; in the end everybody has booked the same sum."""
    buy(market, before)
    market.marketplace_process.kill()
    buy(market, during)
    market.marketplace_process.start()
    market.marketplace_process.party()
    buy(market, after)
    booked = until("the same sum in all three ledgers", market.agreed)
    assert booked["marketplace"] > 0


def buy(market: Market, purchases: int) -> None:
    """So many short answers, one after the other."""
    direct = DefaultHttpxClient(trust_env=False)
    with OpenAI(
        base_url=f"{market.buyer.root}/v1", api_key=market.buyer.api_key, max_retries=0, http_client=direct
    ) as client:
        for number in range(purchases):
            answer = client.chat.completions.with_raw_response.create(
                model=roles.MODEL.name,
                messages=[{"role": "user", "content": f"What is river {number}?"}],
                max_tokens=4,
            )
            assert answer.headers["x-millrace-lane"] == "market"
            assert answer.parse().choices[0].message.content


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_seller_without_a_tunnel_is_bought_from_through_the_marketplace(tmp_path: Path) -> None:
    with open_market(tmp_path, nodes=1, tunnel="none") as market:
        assert market.trade("What is a river?")["ok"]
        buy(market, 4)
        booked = until("the same sum in all three ledgers", market.agreed)
        assert booked["marketplace"] > 0


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_demos_last_line_is_what_happened(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "demo.market", "--once"],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env=os.environ | {"TMPDIR": str(tmp_path)},
    )
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout.splitlines()[-1])
    assert summary["ok"]
    assert "stand-ins" in done.stderr
    assert list(tmp_path.glob("millrace-demo-market-*")) == []
