"""/accounting/v1/ledger: blocks with their keys by pages, verdicts that may say no, health with its age."""

from collections.abc import AsyncIterator
from typing import Any

import anyio
import httpx
import pytest

from gateway.billing import inspection
from runtime.data_folder import DataFolder
from tests.gateway.api.conftest import Serve, Served

pytestmark = pytest.mark.anyio


@pytest.fixture
async def instance(serve: Serve, dsn: str) -> AsyncIterator[Served]:
    """With one credit in a block."""
    async with serve(dsn) as served:
        await served.services.ledger.credit("c1", "owner", 5, "test")
        await _until(served, lambda told: told["checkpoint"] is not None)
        yield served


async def _get(client: httpx.AsyncClient, path: str, **params: Any) -> Any:
    answer = await client.get(f"/accounting/v1/ledger{path}", params=params)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def _until(served: Served, is_so: Any, path: str = "/blocks") -> Any:
    with anyio.fail_after(60):
        while not is_so(told := await _get(served.machine, path)):
            await anyio.sleep(0.05)
    return told


async def test_blocks_come_with_the_keys_of_their_page(instance: Served) -> None:
    page = await _get(instance.machine, "/blocks")
    assert set(page["keys"]) == {block["signed_by"] for block in page["blocks"]}
    beyond = await _get(instance.machine, "/blocks", after=page["checkpoint"]["n"])
    assert (beyond["blocks"], beyond["keys"]) == ([], {})


async def test_a_verification_expects_keys(instance: Served) -> None:
    (key,) = (await _get(instance.machine, "/blocks"))["keys"]
    told = await _get(instance.machine, "/verify", signed_by=key)
    assert (told["sound"], told["tail_age_s"]) == (True, None)
    told = await _get(instance.machine, "/verify", signed_by="e" * 64)
    assert [flaw["where"] for flaw in told["flaws"]] == ["block 1"]
    refused = await instance.machine.get("/accounting/v1/ledger/verify", params={"signed_by": "mine"})
    assert refused.status_code == 400
    assert "signed_by" in refused.text


async def test_a_key_that_signs_nothing_is_told(instance: Served) -> None:
    folder = DataFolder(instance.services.settings.data_dir)
    folder.ledger_key.chmod(0o644)
    await instance.services.ledger.credit("c2", "owner", 5, "test")
    told = await _until(instance, lambda told: told["unproven"]["events"], "/health")
    assert told["unproven"]["events"] == 1
    assert "chmod 600" in told["unproven"]["trouble"]
    ready = (await instance.machine.get("/readyz")).json()
    assert "no block can be made" in ready["ledger"]
    assert "millrace_ledger_unproven_events 1" in (await instance.machine.get("/metrics")).text


async def test_every_rule_is_checked_once_while_the_result_is_fresh(
    instance: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert inspection.FRESH_S == 60
    monkeypatch.setattr(inspection, "FRESH_S", 3600.0)
    first = await _get(instance.machine, "/health", deep=True)
    again = await _get(instance.machine, "/health", deep=True)
    assert first["sound"]
    assert first["deep"]
    assert again["age_s"] >= first["age_s"]
