"""Requests to strangers reach the public internet and nothing else, and end whatever the stranger does."""

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from market.network.addresses import is_public
from market.network.outbound import Outbound, Unreachable
from tests.market.network.internet import NAME, PUBLIC, Internet, Site, certificate, served

pytestmark = pytest.mark.anyio

URL = f"https://{NAME}"
INNER = """
127.0.0.1 127.8.9.1 0.0.0.0 10.0.0.1 172.16.0.1 172.31.255.255 192.168.1.1 169.254.169.254 169.254.170.2
100.64.0.1 100.100.100.200 192.0.0.192 192.0.2.1 198.18.0.1 198.51.100.1 203.0.113.1 224.0.0.1 240.0.0.1
255.255.255.255 168.63.129.16 192.88.99.1 ::1 :: ::127.0.0.1 ::ffff:127.0.0.1 ::ffff:169.254.169.254
::ffff:a00:1 ::ffff:0:127.0.0.1 64:ff9b::7f00:1 64:ff9b::a9fe:a9fe 64:ff9b:1::a00:1 2002:7f00:1::
2002:a9fe:a9fe:: 2001:0:4136:e378:8000:63bf:3fff:fdd2 2001:db8::1 fe80::1 fe80::1%eth0 fec0::1 fc00::1
fd00:ec2::254 fd12:3456::1 ff02::1 100::1 2001:10::1 3fff::1 5f00::1 1::1 4000::1 127.1 0x7f000001 2130706433
0177.0.0.1 localhost
"""


@dataclass
class World:
    """A public site behind TLS, and one on loopback that no stranger's word may lead to."""

    internet: Internet
    site: Site
    secret: Site
    secret_port: int
    outbound: Outbound


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    shown, trust = certificate(tmp_path, NAME)
    internet, site, secret = Internet(), Site(), Site()
    internet.names[NAME] = [[PUBLIC]]
    async with AsyncExitStack() as stack:
        internet.port = await stack.enter_async_context(served(site, shown))
        secret_port = await stack.enter_async_context(served(secret))
        site.redirect_to = f"http://127.0.0.1:{secret_port}/"
        outbound = Outbound(False, resolve=internet.resolve, network=internet, trust=trust)
        await stack.enter_async_context(outbound)
        yield World(internet, site, secret, secret_port, outbound)


@pytest.mark.parametrize("address", INNER.split())
async def test_no_form_of_an_inner_address_is_public(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize(
    "address", [PUBLIC, "1.1.1.1", "2606:4700::6810:84e5", "::ffff:1.1.1.1", "64:ff9b::808:808"]
)
async def test_public_addresses_are(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize(
    "url",
    [
        "http://seller.example.com/",
        "https://localhost/",
        "https://127.0.0.1/",
        "https://127.1/",
        "https://2130706433/",
        "https://0x7f000001/",
        "https://[::1]/",
        "https://[::ffff:127.0.0.1]/",
        "http://127.0.0.1:{port}/",
        "http://127.0.0.2:{port}/",
        "http://[::1]:{port}/",
        "https://seller.example.com:{port}/",
        "https://seller.example.com@127.0.0.1:{port}/",
        "https://127.0.0.1:{port}@seller.example.com/",
        "https://127.0.0.1:{port}#@seller.example.com/",
        "https://127.0.0.1:{port}\\@seller.example.com/",
        "https://seller.example.com\r\nhost: x/",
        "https://seller.example.com/a\r\nx: y",
        "https://seller.example.com/ ",
        "https://SELLER.example.com/",
        "https://seller.example.com./",
        "https://metadata.google.internal/",
        "https://ſeller.example.com/",
        "https://seller.example.com:0/",
        "https://seller.example.com:99999/",
        "file:///etc/passwd",
        "gopher://seller.example.com/",
        "//seller.example.com/",
        "",
    ],
)
async def test_what_is_no_public_name_is_not_even_looked_up(world: World, url: str) -> None:
    with pytest.raises(Unreachable) as refused:
        await world.outbound.ask(url.replace("{port}", str(world.secret_port)), timeout_s=5)
    assert refused.value.is_unsent
    assert world.internet.lookups == world.internet.dialled == []


@pytest.mark.parametrize(
    "answer", [["127.0.0.1"], ["::ffff:127.0.0.1"], [PUBLIC, "10.0.0.1"], ["169.254.169.254"], [], ["fe80::1%lo"]]
)
async def test_names_of_inner_addresses_are_not_connected_to(world: World, answer: list[str]) -> None:
    world.internet.names[NAME] = [answer]
    with pytest.raises(Unreachable) as refused:
        await world.outbound.ask(URL, b"{}")
    assert refused.value.is_unsent
    assert world.internet.dialled == []


async def test_a_name_that_changes_its_mind_gains_nothing(world: World) -> None:
    """The address that was checked is the one that is connected to; another look-up is another check."""
    world.internet.names[NAME] = [[PUBLIC], ["127.0.0.1"]]
    assert (await world.outbound.ask(f"{URL}/first")).status == 200
    assert world.internet.dialled == [PUBLIC]
    assert len(world.internet.lookups) == 1
    # The next connection, since this one is cut, must look again.
    with pytest.raises(Unreachable):
        await world.outbound.ask(f"{URL}/cut")
    with pytest.raises(Unreachable, match="not public"):
        await world.outbound.ask(f"{URL}/second")
    assert world.internet.dialled == [PUBLIC]
    assert world.secret.connections == 0


async def test_redirects_cookies_and_proxies_lead_nowhere(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{world.secret_port}")
    answer = await world.outbound.ask(f"{URL}/redirect", b"{}", headers={"authorization": "Bearer s"})
    assert answer.status == 302
    reply = await world.outbound.ask(f"{URL}/market?x=1", b'{"a": 1}')
    assert json.loads(reply.body) == {"path": "/market?x=1", "body": '{"a": 1}'}
    assert b"cookie" not in world.site.heads[-1].lower()
    assert b"authorization" not in world.site.heads[-1].lower()
    assert f"host: {NAME}\r\n".encode() in world.site.heads[-1].lower()
    assert world.site.connections == 1
    assert world.secret.connections == 0
    busy = await world.outbound.ask(f"{URL}/busy")
    assert (busy.status, busy.body, busy.retry_after_s) == (429, b"later", 7)


async def test_another_name_at_the_same_address_must_show_its_own_certificate(world: World) -> None:
    world.internet.names["other.example.com"] = [[PUBLIC]]
    assert (await world.outbound.ask(URL)).status == 200
    with pytest.raises(Unreachable) as refused:
        await world.outbound.ask("https://other.example.com")
    assert refused.value.is_unsent
    assert len(world.site.heads) == 1


@pytest.mark.parametrize("path", ["endless", "headers", "nonsense", "silent", "gap", "cut"])
async def test_a_stranger_that_answers_badly_is_given_up(world: World, path: str) -> None:
    with pytest.raises(Unreachable) as given_up:
        await world.outbound.ask(f"{URL}/{path}", b"{}", timeout_s=1.0)
    assert not given_up.value.is_unsent
    assert (await world.outbound.ask(URL)).status == 200


async def test_a_stream_comes_as_it_is_sent_and_is_not_waited_for_too_long(world: World) -> None:
    async with world.outbound.stream(f"{URL}/gap", b"{}", gap_s=0.2) as streamed:
        assert streamed.status == 200
        assert await anext(streamed.events) == b"one"
        with pytest.raises(Unreachable):
            await anext(streamed.events)
    with pytest.raises(Unreachable):
        async with world.outbound.stream(f"{URL}/silent", b"{}", first_byte_s=0.2):
            raise AssertionError
    with pytest.raises(TimeoutError, match="our own"):
        async with world.outbound.stream(f"{URL}/gap", b"{}"):
            raise TimeoutError("our own")


async def test_only_what_the_owner_named_may_be_private() -> None:
    mine, other, internet = Site(), Site(), Internet()
    internet.names["market.lan"] = [["127.0.0.1"]]
    async with AsyncExitStack() as stack:
        port = await stack.enter_async_context(served(mine))
        other_port = await stack.enter_async_context(served(other))
        named = await stack.enter_async_context(
            Outbound(False, named=[f"http://market.lan:{port}/market"], resolve=internet.resolve, network=internet)
        )
        assert (await named.ask(f"http://market.lan:{port}/x")).status == 200
        for url in (f"http://market.lan:{other_port}", f"https://market.lan:{port}", f"http://127.0.0.1:{port}"):
            with pytest.raises(Unreachable):
                await named.ask(url)
        loopback = await stack.enter_async_context(Outbound(True))
        assert (await loopback.ask(f"http://127.0.0.1:{port}/y")).status == 200
        with pytest.raises(Unreachable):
            await loopback.ask(f"http://localhost:{port}/y")
    assert len(mine.heads) == 2
    assert other.connections == 0
