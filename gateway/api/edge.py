"""Layers of every route other than the hot ones: an id in each answer, a caller, a bounded body."""

import asyncio
from collections.abc import Collection

import structlog
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.identity.caller import Caller
from gateway.identity.gate import Gate
from runtime.errors import BodyTooLarge, KeyInvalid, NotFound, RequestInvalid
from runtime.request_ids import HEADER, new_request_id

BODY_TIMEOUT_S = 30.0


class Edge:
    """The outermost ASGI layer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request_id = new_request_id()
        structlog.contextvars.bind_contextvars(request_id=request_id)

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (HEADER, request_id.encode())]
            await send(message)

        await self._app(scope, receive, send_with_id)


class BoundedBodies:
    """A layer for applications that read a whole body before they know the caller, as FastAPI does.

    Paths in `uploads` bound their bodies themselves.
    """

    def __init__(self, app: ASGIApp, bytes_max: int, uploads: Collection[str]) -> None:
        self._app = app
        self._bytes_max = bytes_max
        self._uploads = uploads

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        bounded = receive if scope["path"] in self._uploads else _BoundedBody(receive, self._bytes_max)
        await self._app(scope, bounded, send)


class _BoundedBody:
    """A request's body on its way to the application.

    Raises BodyTooLarge, and RequestInvalid when it stalls.
    """

    def __init__(self, receive: Receive, bytes_max: int) -> None:
        self._receive = receive
        self._bytes_max = bytes_max
        self._taken_bytes = 0
        self._is_whole = False
        self._due_s: float | None = None

    async def __call__(self) -> Message:
        if self._is_whole:
            return await self._receive()  # the next message is the client's disconnect
        self._due_s = self._due_s or asyncio.get_running_loop().time() + BODY_TIMEOUT_S
        try:
            async with asyncio.timeout_at(self._due_s):
                message = await self._receive()
        except TimeoutError:
            raise RequestInvalid(f"The body did not arrive within {BODY_TIMEOUT_S:.0f} s.") from None
        self._taken_bytes += len(message.get("body", b""))
        if self._taken_bytes > self._bytes_max:
            raise BodyTooLarge.of_request(self._bytes_max)
        self._is_whole = not message.get("more_body")
        return message


async def misspelt(request: Request) -> Response:
    """Refuse a misspelt path of a hot route: exact paths never reach ASGI. Raises NotFound."""
    raise NotFound(f"{request.method} {request.url.path} not found. Check the spelling.")


async def authenticate(gate: Gate, scope: Scope) -> Caller:
    """Return the caller of the bearer token or of Anthropic's key header. Raises KeyInvalid."""
    headers = dict(scope["headers"])
    kind, _, token = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
    if kind.lower() != "bearer":
        token = headers.get(b"x-api-key", b"").decode("latin-1")
    if not token.strip():
        raise KeyInvalid("No API key was given. Send 'Authorization: Bearer YOUR_KEY'.")
    address = scope["client"][0] if scope.get("client") else ""
    return await gate.admit(token.strip(), address)


async def read_body(scope: Scope, receive: Receive, bytes_max: int) -> bytes:
    """Return the whole body. Raises BodyTooLarge as soon as it exceeds the bound, RequestInvalid if it stalls."""
    declared = next((value for name, value in scope["headers"] if name == b"content-length"), b"")
    if declared.isdigit() and int(declared) > bytes_max:
        raise BodyTooLarge.of_request(bytes_max)
    parts: list[bytes] = []
    bounded = _BoundedBody(receive, bytes_max)
    while True:
        message = await bounded()
        if message["type"] == "http.disconnect":
            raise RequestInvalid("The connection closed before the body was complete.")
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(parts)
