"""The agent's HTTP application: a short list of exact paths, each with a maximum body size.

It is reachable from the open internet through a tunnel. Requests are refused before their body is read.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import msgspec
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from market.errors import MarketError
from market.network import challenge
from market.network.identity import OwnIdentity
from market.protocol.channels.job import JOB_BYTES_MAX, RECEIPTS_BYTES_MAX, read_receipts
from market.seller.callers import Callers, HeldBytes, NotAccepted, RequestKind
from market.seller.carrier import Carrier, JobRefused
from market.seller.job_handler import JobHandler

GOSSIP_BYTES_MAX = 2 * 2**20
BODY_S = 30.0
"""Seconds within which a whole body must arrive."""
_POST = {
    b"/market/v1/jobs": JOB_BYTES_MAX,
    b"/market/v1/receipts": RECEIPTS_BYTES_MAX,
    b"/market/v1/gossip/digest": GOSSIP_BYTES_MAX,
    b"/market/v1/gossip/records": GOSSIP_BYTES_MAX,
}
_POST_FOR: dict[bytes, RequestKind] = {
    b"/market/v1/jobs": "jobs",
    b"/market/v1/receipts": "receipts",
    b"/market/v1/gossip/digest": "gossip",
    b"/market/v1/gossip/records": "gossip",
}
_CHALLENGE = re.compile(rb"/market/v1/challenge/([0-9a-f]{64})")


@dataclass(slots=True)
class AgentApp:
    """The ASGI application. `gossip` answers the two paths of gossip."""

    job_handler: JobHandler
    own: OwnIdentity
    gossip: ASGIApp
    callers: Callers = field(default_factory=Callers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http"
        try:
            await self._answer(scope, receive, send)
        except NotAccepted as error:
            headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
            await _reply(send, error.status, headers, error.body())

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Compare the raw path: escaped, doubled or `..` segments make another path than those here.
        path: bytes = scope["raw_path"]
        longest_bytes = _POST.get(path)
        found = _CHALLENGE.fullmatch(path)
        if longest_bytes is None and found is None:
            raise NotAccepted(404, "not_found", "Unknown path.")
        if scope["query_string"]:
            raise NotAccepted(400, "malformed", "Query strings are not allowed here.")
        if found is not None:
            if scope["method"] != "GET":
                raise NotAccepted(405, "malformed", "Use GET for this path.")
            _length_bytes(scope, 0)
            with self.callers.letting_in(self.callers.network(scope), "challenge"):
                await _reply_json(send, self._identify(bytes.fromhex(found[1].decode())))
        elif scope["method"] != "POST":
            raise NotAccepted(405, "malformed", "Use POST for this path.")
        else:
            await self._post(path, _length_bytes(scope, longest_bytes or 0), scope, receive, send)

    async def _post(self, path: bytes, length_bytes: int, scope: Scope, receive: Receive, send: Send) -> None:
        network = self.callers.network(scope)
        with self.callers.letting_in(network, _POST_FOR[path]), self.callers.holding(network) as held:
            body = await _read(length_bytes, receive, held)
            if path == b"/market/v1/jobs":
                await self._serve(body, held, receive, send)
            elif path == b"/market/v1/receipts":
                await self._take_receipts(body, send)
            else:
                await self.gossip(scope, _replayed(body, receive), send)

    async def _serve(self, body: bytes, held: HeldBytes, receive: Receive, send: Send) -> None:
        # From here the slot and the model's context length bound the job's bytes.
        carrier = Carrier(receive, send, held.release)
        try:
            await self.job_handler.serve(body, carrier)
        finally:
            await carrier.end()

    async def _take_receipts(self, body: bytes, send: Send) -> None:
        try:
            grown = await self.job_handler.take_receipts(read_receipts(body))
        except JobRefused as refused:
            await _reply(send, refused.status, refused.headers(), refused.body())
            return
        except MarketError as error:
            raise NotAccepted(400, "malformed", f"{error}.") from None
        await _reply_json(send, {"lanes": grown})

    def _identify(self, nonce: bytes) -> dict[str, object]:
        """Prove who answers at this address; the caller chose the nonce."""
        signer = self.own.signer
        return {
            "identity": self.job_handler.seller,
            "key": signer.public_key.hex(),
            "signature": signer.sign(challenge.DOMAIN + nonce).hex(),
            "statements": [each.raw.decode() for each in self.own.statements],
        }


def _length_bytes(scope: Scope, longest_bytes: int) -> int:
    """Return the body's stated length in bytes. Raises NotAccepted unless it is stated once and clearly."""
    headers: list[tuple[bytes, bytes]] = scope["headers"]
    if any(name == b"transfer-encoding" for name, _ in headers):
        raise NotAccepted(411, "malformed", "Send Content-Length instead of Transfer-Encoding.")
    lengths = [value for name, value in headers if name == b"content-length"]
    if len(lengths) > 1 or not all(re.fullmatch(rb"[0-9]{1,12}", value) for value in lengths):
        raise NotAccepted(400, "malformed", "Content-Length must be one number.")
    length_bytes = int(lengths[0]) if lengths else 0
    if longest_bytes and not lengths:
        raise NotAccepted(411, "malformed", "Content-Length is missing.")
    if length_bytes > longest_bytes:
        raise NotAccepted(413, "malformed", f"The body is too large. At most {longest_bytes} bytes are allowed.")
    return length_bytes


async def _read(length_bytes: int, receive: Receive, held: HeldBytes) -> bytes:
    try:
        async with asyncio.timeout(BODY_S):
            return await _body(length_bytes, receive, held)
    except TimeoutError:
        raise NotAccepted(408, "malformed", "The body did not arrive in time.") from None


async def _body(length_bytes: int, receive: Receive, held: HeldBytes) -> bytes:
    """Read the body. Bytes count as they arrive, so merely announced ones use no quota."""
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise NotAccepted(400, "malformed", "The body ended early.")
        piece = message.get("body", b"")
        held.add(len(piece))
        body += piece
        if len(body) > length_bytes:
            raise NotAccepted(413, "malformed", "The body is longer than its Content-Length.")
        if not message.get("more_body", False):
            return bytes(body)


def _replayed(body: bytes, receive: Receive) -> Callable[[], Awaitable[Message]]:
    """Return a `receive` that yields a body that was already read."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return messages.pop() if messages else await receive()

    return replay


async def _reply_json(send: Send, value: object) -> None:
    await _reply(send, 200, [(b"content-type", b"application/json")], msgspec.json.encode(value))


async def _reply(send: Send, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
    length = (b"content-length", b"%d" % len(body))
    await send({"type": "http.response.start", "status": status, "headers": [*headers, length]})
    await send({"type": "http.response.body", "body": body})
