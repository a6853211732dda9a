"""POST /v1/chat/completions, /v1/completions and /v1/embeddings: plain ASGI, because these carry the traffic."""

import asyncio
from collections.abc import Coroutine
from contextlib import aclosing

import structlog
from starlette.types import Receive, Scope, Send

from gateway.errors import BodyTooLarge, KeyInvalid, RequestInvalid, to_api_error
from gateway.identity.caller import Caller
from gateway.journey.serve import Reply, serve
from gateway.lanes.base import Call
from gateway.openai import Kind, read_request
from gateway.request_ids import HEADER, new_request_id
from gateway.services import Services

log = structlog.get_logger(__name__)

BODY_TIMEOUT_S = 30.0
# A proxy that kept or gathered a stream's events would show them all at its end.
_STREAM_HEADERS = ((b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no"))


class GenerateEndpoint:
    """One hot route. The request's id is made here and goes with it everywhere."""

    def __init__(self, services: Services, kind: Kind) -> None:
        self._services = services
        self._kind: Kind = kind

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request_id = new_request_id()
        structlog.contextvars.bind_contextvars(request_id=request_id)
        try:
            caller = await authenticate(self._services, scope)
            raw = await read_body(scope, receive, self._services.settings.server.body_bytes_max)
            call = Call(request_id, self._kind, read_request(self._kind, raw), raw, caller.user_id)
        except Exception as error:  # noqa: BLE001 - the request's edge
            await _refuse(send, request_id, error)
            return
        await _answer_unless_gone(receive, self._answer(caller, call, send))

    async def _answer(self, caller: Caller, call: Call, send: Send) -> None:
        try:
            reply = await serve(self._services, caller, call)
        except Exception as error:  # noqa: BLE001 - the request's edge
            await _refuse(send, call.id, error)
            return
        await _send_reply(send, reply, _STREAM_HEADERS if call.request.is_stream else ())


async def authenticate(services: Services, scope: Scope) -> Caller:
    """The caller of the bearer token. Raises KeyInvalid."""
    given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
    kind, _, token = given.decode("latin-1").partition(" ")
    if kind.lower() != "bearer" or not token:
        raise KeyInvalid("No API key was given. Send 'Authorization: Bearer YOUR_KEY'.")
    keys = services.keys
    caller = keys.cached(token) or await asyncio.to_thread(keys.find, token.strip())
    if caller is None:
        raise KeyInvalid(
            f"The API key {token[:6]}... is not valid here. `millrace key list` shows those that are."
        )
    return caller


async def read_body(scope: Scope, receive: Receive, bytes_max: int) -> bytes:
    """The whole body. Raises BodyTooLarge without reading more than the bound, RequestInvalid when it stalls."""
    declared = next((value for name, value in scope["headers"] if name == b"content-length"), b"")
    if declared.isdigit() and int(declared) > bytes_max:
        raise _too_large(bytes_max)
    parts: list[bytes] = []
    size_bytes = 0
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise RequestInvalid("The connection closed before the body was complete.")
                part = message.get("body", b"")
                size_bytes += len(part)
                if size_bytes > bytes_max:
                    raise _too_large(bytes_max)
                parts.append(part)
                if not message.get("more_body"):
                    return parts[0] if len(parts) == 1 else b"".join(parts)
    except TimeoutError:
        raise RequestInvalid(f"The body did not arrive within {BODY_TIMEOUT_S:.0f} s.") from None


def _too_large(bytes_max: int) -> BodyTooLarge:
    return BodyTooLarge(f"The body is larger than {bytes_max} bytes, this gateway's limit. Send less text.")


async def _answer_unless_gone(receive: Receive, answering: Coroutine[None, None, None]) -> None:
    """Run to the end, or stop all work for the request the moment its client hangs up."""
    task = asyncio.create_task(answering)
    gone = asyncio.create_task(_wait_until_gone(receive))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
    finally:
        gone.cancel()
        if not task.done():
            task.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)
    if not task.cancelled() and (error := task.exception()):
        raise error


async def _wait_until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _send_reply(send: Send, reply: Reply, more_headers: tuple[tuple[bytes, bytes], ...]) -> None:
    headers = [*reply.headers, *more_headers]
    # A client that leaves between the head and the body must not leave the body's work behind.
    async with aclosing(reply.body) as body:
        await send({"type": "http.response.start", "status": reply.status, "headers": headers})
        async for chunk in body:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def _refuse(send: Send, request_id: str, error: Exception) -> None:
    answer = to_api_error(error)
    if answer.status == 500:
        log.error("request failed", request_id=request_id, exc_info=error)
    body = answer.body()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        (HEADER, request_id.encode()),
        *answer.headers,
    ]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
