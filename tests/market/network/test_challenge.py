"""Threat 21: the server at an address proves to be the seller, or gets no request."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import msgspec
import pytest

from market.network.challenge import DOMAIN, PATH, is_behind
from market.network.outbound import Outbound
from tests.market.parties import id_of, key_of

pytestmark = pytest.mark.anyio

KEY = key_of("seller").public_key.hex()


@asynccontextmanager
async def answering(answer: Callable[[bytes], bytes]) -> AsyncIterator[str]:
    """A server that says `answer` to a nonce."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        path = head.split(b" ")[1].decode()
        assert path.startswith(PATH)
        body = answer(bytes.fromhex(path.removeprefix(PATH)))
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%s" % (len(body), body))
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


def said(by: str, identity: str, nonce: bytes, domain: bytes = DOMAIN) -> bytes:
    signature = key_of(by).sign(domain + nonce).hex()
    return msgspec.json.encode({"identity": id_of(identity), "key": KEY, "signature": signature})


@pytest.mark.parametrize(
    ("is_seller", "answer"),
    [
        (True, lambda nonce: said("seller", "seller", nonce)),
        (False, lambda nonce: said("thief", "seller", nonce)),
        (False, lambda nonce: said("thief", "thief", nonce)),
        (False, lambda nonce: said("seller", "thief", nonce)),
        (False, lambda nonce: said("seller", "seller", b"\0" * 32)),  # what it once signed for another caller
        (False, lambda nonce: said("seller", "seller", nonce, b"millrace seller\n")),
        (False, lambda nonce: b"<html>a parked name</html>"),
        (False, lambda nonce: b'{"identity": "' + b"0" * 2**20),
        (False, lambda nonce: b'{"x": ' + b"[" * 100_000),
        (False, lambda nonce: b'{"identity": "\xff"}'),
    ],
)
async def test_only_the_seller_counts_as_being_there(is_seller: bool, answer: Callable[[bytes], bytes]) -> None:
    async with answering(answer) as url, Outbound(True) as outbound:
        assert await is_behind(outbound, url, id_of("seller"), KEY) is is_seller


async def test_no_server_is_there() -> None:
    async with Outbound(True) as outbound:
        assert not await is_behind(outbound, "http://127.0.0.1:9", id_of("seller"), KEY)
