"""Backends that are added and drained while the gateway runs, and what is left of that after a restart."""

import asyncio
import time
from pathlib import Path

import pytest
from pydantic import ValidationError

from gateway.lanes.pool.lane import PoolLane
from gateway.lanes.pool.stored import PoolStore
from gateway.settings.pool import PoolBackend, PoolSettings
from runtime.errors import NotFound, RequestInvalid
from tests.fakes import pool_servers as servers
from tests.gateway.lanes.pool.conftest import one

pytestmark = pytest.mark.anyio


async def test_what_was_added_and_drained_is_there_after_a_restart(tmp_path: Path) -> None:
    server, kept = servers.vllm(), tmp_path / "pool.json"
    async with servers.running(server):
        settings = one(server.base_url)
        rack = PoolBackend.model_validate(
            {"name": "rack", "base_url": server.base_url, "api_key": "sk-1", "models": {"mine": "Qwen/Qwen3-8B"}}
        )
        lane = PoolLane(settings, kept)
        await lane.start()
        added = await lane.pool.add(rack)
        assert (added.kind, added.standing.state) == ("vllm", "ready")
        await lane.pool.drain("desk", draining=True)
        await lane.stop()
        assert kept.stat().st_mode & 0o077 == 0

        again = PoolLane(settings, kept)
        await again.start()
        assert again.pool.find("rack").headers == {"authorization": "Bearer sk-1"}
        assert again.offers("mine")[0].served_as == "Qwen/Qwen3-8B"
        assert again.pool.find("desk").standing.state == "draining"
        await again.pool.remove("rack")
        assert again.offers("mine") == []
        await again.stop()
    assert b"rack" not in kept.read_bytes()


async def test_what_cannot_be_is_refused_by_name(tmp_path: Path) -> None:
    lane = PoolLane(one("http://127.0.0.1:9/v1", probe_timeout_s=0.2), tmp_path / "pool.json")
    await lane.start()
    try:
        with pytest.raises(RequestInvalid, match="backend desk already exists"):
            await lane.pool.add(lane.pool.find("desk").settings)
        with pytest.raises(RequestInvalid, match="comes from the settings"):
            await lane.pool.remove("desk")
        with pytest.raises(NotFound, match="millrace pool list"):
            await lane.pool.drain("cellar", draining=True)
    finally:
        await lane.stop()


async def test_what_would_not_be_read_again_is_not_taken_in(tmp_path: Path) -> None:
    lane = PoolLane(one("http://127.0.0.1:9/v1", probe_timeout_s=0.2), tmp_path / "pool.json")
    await lane.start()
    try:
        many = {f"{'m' * 200}{at}": "x" * 200 for at in range(3000)}
        with pytest.raises(RequestInvalid) as refused:
            await lane.pool.add(PoolBackend(name="big", base_url="http://127.0.0.1:9", models=many))
        assert refused.value.param == "models"
        assert lane.pool.get("big") is None
    finally:
        await lane.stop()


async def test_changes_at_once_are_all_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is slow for the first write and quick for the others."""
    pauses_s, write = [0.2], PoolStore.write

    def slowly(store: PoolStore, backends: list[PoolBackend], drained: list[str]) -> None:
        time.sleep(pauses_s.pop() if pauses_s else 0.0)
        write(store, backends, drained)

    monkeypatch.setattr(PoolStore, "write", slowly)
    kept = tmp_path / "pool.json"
    lane = PoolLane(PoolSettings(probe_timeout_s=0.1), kept)
    await lane.start()
    try:
        names = {f"rack{at}" for at in range(5)}
        backends = [PoolBackend(name=name, base_url="http://127.0.0.1:9") for name in names]
        await asyncio.gather(*map(lane.pool.add, backends))
    finally:
        await lane.stop()
    assert {backend.name for backend in PoolStore(kept).read()[0]} == names


BROKEN = (b"", b"{", b"[]", b'{"backends": [{"name": "../x"}]}', b'{"drained": 1}', b"\xff")


@pytest.mark.parametrize("content", BROKEN)
async def test_a_broken_file_is_put_aside_and_the_settings_serve(content: bytes, tmp_path: Path) -> None:
    kept = tmp_path / "pool.json"
    kept.write_bytes(content)
    lane = PoolLane(PoolSettings(), kept)
    await lane.start()
    await lane.stop()
    assert lane.models() == []
    assert (tmp_path / "pool.json.broken").read_bytes() == content


@pytest.mark.parametrize(
    "address",
    [
        "desk:11434",
        "ftp://desk",
        "http://",
        "http://me:secret@desk",
        "http://desk/v1?x=1",
        "http://desk:99999",
        "http://desk/#a",
    ],
)
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(ValidationError) as refused:
        PoolBackend(name="desk", base_url=address)
    assert refused.value.errors()[0]["loc"] == ("base_url",)
    assert "/v1" in PoolBackend(name="desk", base_url="http://desk:11434/").base_url
