"""Threats 21, 22 and 26: what stands on the open internet answers a short list of questions, and nothing else."""

import asyncio
import socket
from pathlib import Path

import pytest

from accounting.proofs.signing_key import is_signed
from market.network.challenge import is_behind
from market.protocol.channels.channel import settle
from market.protocol.channels.job import JOB_BYTES_MAX, pack_job
from market.seller import process as selling_serving
from market.seller.carrier import AgentProtocol
from tests.market.seller.buyer import plain_http
from tests.market.seller.shop import Shop, open_shop, until
from tests.market.seller.stage import END, chunk

pytestmark = pytest.mark.anyio

NOWHERE = (
    "/",
    "/admin/idle",
    "/v1/chat/completions",
    "/v1/models",
    "/metrics",
    "/market/v1/jobs/",
    "//market/v1/jobs",
    "/market/v1/../v1/jobs",
    "/market/v1/%6aobs",
    "/market/v1/jobs;x",
    "/MARKET/v1/jobs",
    "/market/v1/jobs%00",
    "/market/v1/challenge/../../etc/passwd",
    "/market/v1/challenge/..%2f..%2fetc%2fpasswd",
    "/market/v1/challenge/" + "A" * 64,
    "/market/v1/tokenizers/" + "a" * 64,
    "/market/v1/challenge/" + "a" * 65,
)
JOBS = b"POST /market/v1/jobs HTTP/1.1\r\nHost: x\r\n"
SMUGGLED = b"GET /admin/idle HTTP/1.1\r\nHost: x\r\n\r\n"
HEADS = (
    JOBS + b"Content-Length: 4\r\nContent-Length: 50\r\n\r\nabcd" + SMUGGLED,
    JOBS + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + SMUGGLED,
    JOBS + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    JOBS + b"Transfer-Encoding: identity\r\n\r\n",
    JOBS + b"Content-Length: +4\r\n\r\nabcd",
    JOBS + b"Content-Length: -1\r\n\r\n",
    JOBS + b"Content-Length: %d\r\n\r\n" % (JOB_BYTES_MAX + 1),
    JOBS + b"\r\n",
    JOBS + b"Content-Length : 4\r\n\r\nabcd",
    JOBS + b"X: " + b"a" * 70_000 + b"\r\nContent-Length: 0\r\n\r\n",
    b"POST /market/v1/jobs?x=1 HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n",
    b"GET /market/v1/jobs HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET http://169.254.169.254/market/v1/jobs HTTP/1.1\r\nHost: x\r\n\r\n",
    b"CONNECT 127.0.0.1:22 HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /market/v1/challenge/" + b"a" * 64 + b" HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc",
)


async def said_to(shop: Shop, raw: bytes) -> bytes:
    """All that comes back for these bytes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(shop.endpoint.rpartition(":")[2]))
    writer.write(raw)
    writer.write_eof()
    try:
        async with asyncio.timeout(60):
            return await reader.read()
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


async def test_only_the_markets_paths_are_there(tmp_path: Path) -> None:
    async with open_shop(tmp_path) as shop:
        for path in NOWHERE:
            for method in (b"GET", b"POST"):
                head = b"%b %b HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n" % (method, path.encode())
                assert (await said_to(shop, head)).startswith(b"HTTP/1.1 4"), path
        for head in HEADS:
            answers = await said_to(shop, head)
            assert answers.startswith(b"HTTP/1.1 4"), head
            # One answer at most: nothing in a body was taken for another request.
            assert answers.count(b"HTTP/1.1") == 1, head
        # A body that is too long is refused by its headers, without waiting for the rest.
        assert b" 413 " in await said_to(shop, HEADS[6])
        assert not shop.stage.requests


async def test_who_is_behind_an_address_can_be_asked(tmp_path: Path) -> None:
    """Threat 21: any caller detects a server that has our address but not our key."""
    async with open_shop(tmp_path / "seller") as shop, open_shop(tmp_path / "other") as other:
        own = shop.agent.own
        async with plain_http() as http:
            answer = (await http.get(f"{shop.endpoint}/market/v1/challenge/{'1f' * 32}")).json()
        message = b"millrace challenge\n" + b"\x1f" * 32
        assert answer["identity"] == own.id
        assert is_signed(own.signer.public_key, bytes.fromhex(answer["signature"]), message)

        key, outbound = own.signer.public_key.hex(), shop.agent.outbound
        assert await is_behind(outbound, shop.endpoint, own.id, key)
        assert not await is_behind(outbound, other.endpoint, own.id, key)
        # A job that is sent to it all the same has nothing that it could read or be paid for.
        buyer = await shop.buyer()
        buyer.endpoint = other.endpoint
        bought = await buyer.buy(buyer.order())
        assert (bought.status, bought.error["code"]) == (400, "malformed")
        assert not other.stage.requests


async def test_every_caller_gets_the_listings(tmp_path: Path) -> None:
    async with open_shop(tmp_path) as shop:
        buyer = await shop.buyer()
        async with plain_http() as http:
            requests = {"summary": ["0" * 64] * 64}
            reply = await http.post(f"{shop.endpoint}/market/v1/gossip/digest", json=requests)
            assert buyer.listing_record.raw.decode() in reply.json()["records"]


async def test_buyer_that_does_not_read_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threat 26: it keeps neither the owner's machine nor memory, and owes what the network has taken."""

    class Impatient(AgentProtocol):
        head_s = 0.2
        send_s = 0.3

    monkeypatch.setattr(selling_serving, "AgentProtocol", Impatient)
    async with open_shop(tmp_path) as shop:
        bulky = chunk(" word")
        bulky["choices"][0]["logprobs"] = {"content": ["x" * 30_000]}
        shop.stage.script = [*[bulky] * 3000, END]
        buyer = await shop.buyer(limit_nano=10**12)
        purchase = buyer.order(most_tokens=10**5)
        body = pack_job(purchase.job)
        with socket.socket() as slow:
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            slow.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(slow, ("127.0.0.1", int(shop.endpoint.rpartition(":")[2])))
            await loop.sock_sendall(slow, JOBS + b"Content-Length: %d\r\n\r\n" % len(body) + body)
            async with asyncio.timeout(60):
                await shop.stage.stopped.wait()
            await shop.is_empty()
        claim = (await shop.known(buyer.terms)).lanes[0].claim
        assert claim
        assert claim.receipt.is_final
        assert 0 < claim.receipt.completion_tokens < 3000
        assert settle(await shop.known(buyer.terms)).claimed_nano > 0
        await until(lambda: shop.agent.job_handler.admission.is_empty.is_set())
