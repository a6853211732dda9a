"""`millrace sell` as a process: its first line, a job, SIGTERM in the middle of an answer, and its end."""

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gateway.cli import output
from gateway.cli.main import app
from market.network.identity import OwnIdentity
from market.protocol.listings.listing import Listing
from market.protocol.records.envelope import Record, open_record
from runtime.data_folder import DataFolder
from tests.market.seller.buyer import Buyer, plain_http
from tests.market.seller.stage import ADMIN, MODEL, STALL, Stage, staged, words

PRICES = ("--prompt-usd-per-mtok", "50", "--completion-usd-per-mtok", "200.00")


@asynccontextmanager
async def selling(stage: Stage, folder: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """The command, beside the staged gateway and marketplace."""
    data = DataFolder(folder)
    data.prepare()
    data.write_running(f"{stage.url}/v1", ADMIN)
    settings = {
        "MARKETPLACE_URL": stage.url,
        "TUNNEL": "loopback",
        "ALLOWS_LOOPBACK": "true",
        "QUEUE_EMPTY_MINUTES": "0",
        "DRAIN_S": "1",
    }
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gateway", "sell", "--json", "--data-dir", str(folder), "--model", MODEL, *PRICES),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={name: value for name, value in os.environ.items() if not name.startswith("MILLRACE_")}
        | {f"MILLRACE_SELLING__{name}": value for name, value in settings.items()},
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def listing_at(endpoint: str) -> Record:
    """Return what the seller tells any caller."""
    async with asyncio.timeout(60), plain_http() as http:
        while True:
            reply = await http.post(f"{endpoint}/market/v1/gossip/digest", json={"summary": ["0" * 64] * 64})
            for raw in reply.json()["records"]:
                record = open_record(raw.encode())
                if record.kind == "listing" and record.read("listing", Listing).is_ready:
                    return record
            await asyncio.sleep(0.05)


@pytest.mark.anyio
async def test_sells_until_it_is_told_to_stop(tmp_path: Path) -> None:
    async with staged() as stage, selling(stage, tmp_path) as process:
        assert process.stdout
        async with asyncio.timeout(40):
            facts = json.loads(await process.stdout.readline())
        assert facts["pid"] == process.pid
        assert facts["endpoint"].startswith("http://127.0.0.1:")
        record = await listing_at(facts["endpoint"])
        assert record.issuer == facts["identity"]
        buyer = Buyer(facts["endpoint"], record, facts["identity"], made_ms=time.time_ns() // 10**6)
        assert (await buyer.buy(buyer.order())).has_ended

        stage.script = [*words(2), STALL]
        purchase = buyer.order()
        async with aclosing(buyer.stream(purchase)) as stream:
            while len(purchase.pieces) < 2:
                await anext(stream)
            process.send_signal(signal.SIGTERM)
            async for _ in stream:
                pass
        assert purchase.cut
        assert purchase.has_ended
        async with asyncio.timeout(60):
            assert await process.wait() == 0
        # Both sales are in the owner's ledger and at the marketplace before the process is gone.
        assert [sale["seq"] for sale in stage.sales] == [1, 2]
        assert stage.settlements


def test_refuses_to_begin(tmp_path: Path) -> None:
    """Threat 20: with a revoked identity; and where no gateway runs."""
    command = ["sell", "--data-dir", str(tmp_path), "--model", MODEL, *PRICES]
    away = CliRunner().invoke(app, command)
    assert (away.exit_code, "no gateway is running" in away.stderr) == (output.UNREACHABLE, True)
    data = DataFolder(tmp_path)
    data.write_running("http://127.0.0.1:9/v1", ADMIN)
    own = OwnIdentity.open(tmp_path / "market")
    own.revoke(own.signer.public_key, "stolen")
    refused = CliRunner().invoke(app, command)
    assert (refused.exit_code, "revoked" in refused.stderr) == (output.FAILED, True)
