"""Threat 26: a caller that floods the agent takes no room from other callers."""

import asyncio
from pathlib import Path

import pytest

from market.protocol.channels.job import JOB_BYTES_MAX
from market.seller.callers import NETWORK_HELD_BYTES_MAX, PER_MINUTE, Callers, NotAccepted, address_of
from market.settings.seller import SellingSettings
from tests.market.seller.shop import open_shop

pytestmark = pytest.mark.anyio

HEAD = b"POST /market/v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % JOB_BYTES_MAX


async def test_what_is_only_announced_takes_no_room(tmp_path: Path) -> None:
    async with open_shop(tmp_path) as shop:
        port = int(shop.endpoint.rpartition(":")[2])
        announced = [(await asyncio.open_connection("127.0.0.1", port))[1] for _ in range(16)]
        for writer in announced:
            writer.write(HEAD)
            await writer.drain()
        buyer = await shop.buyer()
        assert (await buyer.buy(buyer.order())).status == 200
        for writer in announced:
            writer.close()


def test_one_network_has_its_share_and_no_more() -> None:
    callers = Callers(now_s=lambda: 0.0)
    with callers.holding("one") as held, callers.holding("one") as more, callers.holding("other") as others:
        held.add(NETWORK_HELD_BYTES_MAX)
        with pytest.raises(NotAccepted):
            more.add(1)
        others.add(JOB_BYTES_MAX)
        held.release()
        more.add(1)
    with callers.holding("one") as held:
        held.add(NETWORK_HELD_BYTES_MAX)

    for _ in range(PER_MINUTE["challenge"]):
        with callers.letting_in("one", "challenge"):
            pass
    with pytest.raises(NotAccepted), callers.letting_in("one", "challenge"):
        pass
    with callers.letting_in("other", "challenge"), callers.letting_in("one", "jobs"):
        pass


def test_who_comes_through_a_tunnel_is_whom_cloudflared_names() -> None:
    scope = {"client": ("127.0.0.1", 1), "headers": [(b"cf-connecting-ip", b"203.0.113.7")]}
    assert address_of(SellingSettings(tunnel="quick"))(scope) == "203.0.113.7"
    assert address_of(SellingSettings(tunnel="none"))(scope) is None
    # Without a tunnel, any caller may set that header.
    assert address_of(SellingSettings(tunnel="loopback", allows_loopback=True))(scope) == "127.0.0.1"
