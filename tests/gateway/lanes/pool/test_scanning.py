"""Looking for servers: what is found, and where nobody looks."""

import asyncio
from typing import Any

import pytest
from zeroconf.asyncio import AsyncServiceInfo, AsyncZeroconf

from cluster.joining.discovery import Announcement
from gateway.lanes.pool.announced import announced
from gateway.lanes.pool.kinds.catalogue import PORTS
from gateway.lanes.pool.scan import ScanTarget, places, scan
from runtime.errors import RequestInvalid
from runtime.http.client import Client
from tests.fakes import pool_servers as servers
from tests.gateway.lanes.pool.conftest import PATIENCE_S

pytestmark = pytest.mark.anyio


async def test_servers_are_found_by_what_they_are_and_others_are_not() -> None:
    ollama, other = servers.ollama(), servers.FakeServer({"/": {"hello": "there"}})
    locked = servers.FakeServer({"/v1/models": 401})
    mute = servers.FakeServer({}, hangs=True)
    async with (
        servers.running(ollama),
        servers.running(other),
        servers.running(locked),
        servers.running(mute),
    ):
        ports = [ollama.port, other.port, locked.port, mute.port, 9]
        wanted = await places(["127.0.0.1"], ports, public=False)
        client = Client()
        found = await scan(client, wanted)
        await client.close()
    assert [(one.kind, one.entry.base_url) for one in found] == [
        ("ollama", ollama.base_url),
        ("openai", locked.base_url),
    ]
    assert "qwen3:8b" in found[0].models
    assert found[0].entry.name == f"ollama-127.0.0.1-{ollama.port}"
    assert "set api_key" in found[1].note


NOT_OURS = ("8.8.8.8", "2001:4860:4860::8888", "8.8.8.0/28", "169.254.169.254")
NO_MACHINES = ("224.0.0.1", "0.0.0.0", "10.0.0.0/8")


@pytest.mark.parametrize("host", NOT_OURS + NO_MACHINES)
async def test_public_odd_and_huge_are_not_looked_at(host: str) -> None:
    with pytest.raises(RequestInvalid) as refused:
        await places([host], (), public=False)
    assert refused.value.param == "hosts"


@pytest.mark.parametrize("host", ["no such host", "10.1.1.9:0", "10.1.1.9:70000", "a" * 300, "nul\0", "-x", ""])
async def test_what_is_no_host_is_refused(host: str) -> None:
    with pytest.raises(RequestInvalid):
        await places([host], (), public=False)


async def test_networks_and_ports_are_looked_at_in_order_and_once() -> None:
    found = await places(["10.1.1.8/30", "10.1.1.9", "::1"], (), public=False)
    assert found[: len(PORTS)] == [ScanTarget("10.1.1.9", port) for port in PORTS]
    assert {place.host for place in found} == {"10.1.1.9", "10.1.1.10", "::1"}
    assert len(found) == 3 * len(PORTS)
    assert ScanTarget("::1", 80).base_url == "http://[::1]:80/v1"
    assert await places(["[::1]:81", "10.1.1.9:82"], (80,), public=False) == [
        ScanTarget("::1", 81),
        ScanTarget("10.1.1.9", 82),
    ]
    assert await places(["8.8.8.8"], (80,), public=True) == [ScanTarget("8.8.8.8", 80)]


async def test_what_announces_itself_is_a_place_to_look_at() -> None:
    here = ["127.0.0.1"]  # multicast that stays on this machine
    wanted = {ScanTarget("127.0.0.1", port) for port in (11434, 8470, 8400)}
    gateway = asyncio.create_task(Announcement("box", "127.0.0.1", 8471, "7" * 32, interfaces=here).run())
    by_hand = AsyncZeroconf(interfaces=here)
    kind = "_ollama._tcp.local."
    for label, address in (("desk", "127.0.0.1"), ("far", "8.8.8.8")):
        name = f"{label}.{kind}"
        service = AsyncServiceInfo(kind, name, port=11434, parsed_addresses=[address], server=f"{label}.local.")
        await (await by_hand.async_register_service(service))
    try:
        found = await _announced(wanted, here)
    finally:
        gateway.cancel()
        await asyncio.gather(gateway, return_exceptions=True)
        await by_hand.async_unregister_all_services()
        await by_hand.async_close()
    assert wanted <= found
    assert not any(place.host == "8.8.8.8" for place in found)


async def _announced(wanted: set[ScanTarget], interfaces: list[str]) -> set[ScanTarget]:
    """What is heard until all that is wanted is among it."""
    found: set[ScanTarget] = set()
    async with asyncio.timeout(PATIENCE_S):
        while not wanted <= found:
            found |= set(await announced(within_s=2.0, interfaces=interfaces))
    return found


async def test_a_name_is_resolved_once_and_what_was_admitted_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second answer of a resolver is an attacker's to choose."""
    answers = iter(["127.0.0.1"])

    async def resolve(host: str, *_: object, **__: object) -> list[Any]:
        return [(0, 0, 0, "", (next(answers), 0))] if host == "desk.example" else [(0, 0, 0, "", (host, 0))]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolve, raising=False)
    async with servers.running(servers.ollama()) as ollama:
        wanted = await places(["desk.example"], [ollama.port], public=False)
        monkeypatch.undo()
        client = Client()
        (found,) = await scan(client, wanted)
        await client.close()
    # By its name, as its owner wrote it: the address may be another one tomorrow.
    assert (found.kind, found.entry.base_url) == ("ollama", f"http://desk.example:{ollama.port}/v1")
