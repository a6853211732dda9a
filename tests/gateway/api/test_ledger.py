"""/accounting/v1/ledger: operators ask whether the ledger is what was signed, nobody else, and within bounds."""

import asyncio
import time

import pytest

from accounting.money import parse_usd
from gateway.billing.ledger_service import LedgerService
from gateway.billing.verification import Reply, VerifyQuestion, verify_in_process
from tests.gateway.api.conftest import Serve

pytestmark = pytest.mark.anyio

LEDGER = "/accounting/v1/ledger"
PATIENCE_S = 60


async def _proven(ledger: LedgerService) -> str:
    """Book an event and wait for its block; the head as text."""
    await ledger.credit("one", "owner", parse_usd("5.00"), "test")
    until_s = time.monotonic() + PATIENCE_S
    while ledger.checkpoint is None:
        assert time.monotonic() < until_s, "no block was made"
        await asyncio.sleep(0.05)
    return str(ledger.checkpoint)


async def test_an_operator_sees_blocks_and_that_they_hold(serve: Serve) -> None:
    async with serve() as served, served.machine as machine:
        checkpoint = await _proven(served.services.ledger)
        listed = (await machine.get(f"{LEDGER}/blocks")).json()
        (block,) = listed["blocks"]
        assert f"{block['n']}:{block['hash']}" == checkpoint
        assert (block["from_seq"], block["to_seq"], block["prev"], listed["next"]) == (1, 1, "00" * 32, None)
        assert list(listed["keys"]) == [block["signed_by"]]
        assert listed["checkpoint"] == {"n": 1, "hash": block["hash"]}
        assert (await machine.get(f"{LEDGER}/blocks?after=1")).json()["blocks"] == []

        verdict = (await machine.get(f"{LEDGER}/verify", params={"known": checkpoint})).json()
        assert (verdict["sound"], verdict["complete"], verdict["flaws"]) == (True, True, [])
        assert (verdict["blocks"], verdict["events"], verdict["tail_events"]) == (1, 1, 0)
        other = f"{checkpoint[:-1]}{'1' if checkpoint.endswith('0') else '0'}"
        verdict = (await machine.get(f"{LEDGER}/verify", params={"known": other})).json()
        assert (verdict["sound"], [flaw["where"] for flaw in verdict["flaws"]]) == (False, ["block 1"])

        health = (await machine.get(f"{LEDGER}/health?deep=true")).json()
        assert (health["sound"], health["deep"]) == (True, True)
        assert (health["broken"], health["accepted"]) == ([], [])
        assert health["unproven"] == {"age_s": 0.0, "events": 0, "trouble": None}


async def test_one_verification_at_a_time(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, may_end = asyncio.Event(), asyncio.Event()

    async def verify_later(question: VerifyQuestion) -> Reply:
        begun.set()
        await may_end.wait()
        return await verify_in_process(question)

    monkeypatch.setattr("gateway.admin.ledger_checks.verify_in_process", verify_later)
    async with serve() as served, served.machine as machine:
        first = asyncio.create_task(machine.get(f"{LEDGER}/verify"))
        await begun.wait()
        refused = await machine.get(f"{LEDGER}/verify")
        may_end.set()
        assert refused.status_code in (429, 503)
        assert "retry-after" in refused.headers
        assert (await first).status_code == 200


async def test_it_is_for_operators(serve: Serve) -> None:
    async with serve() as served:
        served.services.directory.users.add("bob")
        async with served.client() as nobody, served.bearer(served.key_of("bob")) as bob:
            for what in ("verify", "blocks", "health"):
                assert (await nobody.get(f"{LEDGER}/{what}")).status_code == 401
                assert (await bob.get(f"{LEDGER}/{what}")).status_code == 403


MISTAKES = {
    "verify?from_block=0": "from_block",
    "verify?from_block=7": "from_block",
    "verify?from_block=99999999999999999999": "from_block",
    "verify?limit_s=1e9": "limit_s",
    "verify?limit_s=0": "limit_s",
    "verify?known=1:zz": "known",
    "blocks?after=-1": "after",
    "blocks?limit=1001": "limit",
}


async def test_a_mistake_names_its_field(serve: Serve) -> None:
    async with serve() as served, served.machine as machine:
        for query, field in MISTAKES.items():
            answer = await machine.get(f"{LEDGER}/{query}")
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, field), query
