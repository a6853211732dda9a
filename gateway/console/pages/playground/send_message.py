"""Sends a message through the normal request path as the visitor; the answer streams to the page."""

import asyncio
from contextlib import aclosing
from dataclasses import replace

import msgspec
import structlog
from fastapi import APIRouter, Response
from starlette.types import Message, Receive, Scope, Send

from gateway.app_state import RequestPaths
from gateway.console.access import Viewer, Visitor
from gateway.console.forms import read_form
from gateway.console.pages.playground.listener import Listener
from gateway.console.pages.playground.problems import as_json, problem_of, wrong_fields
from gateway.console.pages.playground.question import FORM_BYTES_MAX, PATH, Question
from gateway.console.renderer import HEADERS, pages_of
from gateway.dialects.routes import ROUTES
from gateway.errors import to_api_error
from gateway.identity.caller import Caller
from gateway.lanes.base import Call
from gateway.requests.serve import RequestPath
from runtime.http.api_error import ApiError
from runtime.request_ids import new_request_id

log = structlog.get_logger(__name__)

_STALLED_S = 60.0
_STOP_S = 10.0
_DEFECT = 500
_CHAT = next(route for route in ROUTES if route.path == "/v1/chat/completions")
_TOLD = b"x-millrace-"
_RETRY_AFTER = b"retry-after"
_JSON, _EVENTS = b"application/json", b"text/event-stream"
# A form sent before the page's script loaded shows the answer as a page: nothing in it may run.
_HEADERS = [(name.encode(), value.encode()) for name, value in HEADERS.items()] + [(b"x-accel-buffering", b"no")]

router = APIRouter(prefix=PATH)


@router.post("/ask")
async def ask(visitor: Viewer, requests: RequestPaths) -> Response:
    """Answer as OpenAI's clients get it, and errors with a remedy. Raises RoleForbids, BodyTooLarge."""
    form = await read_form(visitor, Question, FORM_BYTES_MAX)
    if form.value is None:
        return Response(as_json(wrong_fields(form.errors)), 400, media_type="application/json")
    # The gateway's edge has given this exchange an id and sends it in the response headers.
    request_id = structlog.contextvars.get_contextvars().get("request_id") or new_request_id()
    return AnswerStream(visitor, requests.ordinary, request_id, form.value)


def asking(caller: Caller) -> Caller:
    """Return the visitor as routing rules name them: a session without a key has no key prefix."""
    return caller if caller.key_id else replace(caller, key_prefix="(console session)")


class AnswerStream(Response):
    """Sends the request's output. A client that disconnects, or does not read for a minute, ends the request."""

    def __init__(self, visitor: Visitor, path: RequestPath, request_id: str, question: Question) -> None:
        super().__init__()
        self._visitor = visitor
        self._path = path
        self._request_id = request_id
        self._question = question
        self._pages = frozenset(page.path for page in pages_of(visitor.request) if page.roles & visitor.standings)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        listener = Listener(self._problem)
        request_task = asyncio.create_task(self._travel(listener), name=f"playground {self._request_id}")
        leaving = asyncio.create_task(_until_gone(receive), name="playground reader")
        leaving.add_done_callback(lambda _: listener.leave())
        try:
            await _send(listener, send)
        except TimeoutError:
            log.info("answer not read", request_id=self._request_id, seconds=_STALLED_S)
        finally:
            leaving.cancel()
            await _end(request_task, listener)

    def _problem(self, error: ApiError) -> bytes:
        return as_json(problem_of(error, self._pages))

    async def _travel(self, listener: Listener) -> None:
        try:  # the outermost handler of a request, as for connections
            await self._path.serve(asking(self._visitor.caller), self._call(), listener)
        except Exception as error:
            refused = to_api_error(error)
            if refused.status == _DEFECT:
                log.error("request failed", request_id=self._request_id, exc_info=error)
            listener.break_off(refused)

    def _call(self) -> Call:
        """Return the call. Raises RequestInvalid."""
        body = self._question.as_request() | {"stream_options": {"include_usage": True}}
        question = _CHAT.read(msgspec.json.encode(body))
        visitor = self._visitor
        return Call(
            self._request_id,
            question.kind,
            question.request,
            question.raw,
            visitor.caller.user_id,
            question.content_type,
            address=visitor.address,
        )


async def _send(listener: Listener, send: Send) -> None:
    """Send until everything was sent or the client left. Raises TimeoutError if the client stops reading."""
    async with aclosing(listener.pieces()) as pieces:
        async for data in pieces:
            async with asyncio.timeout(_STALLED_S):
                if data:
                    await send({"type": "http.response.body", "body": data, "more_body": True})
                else:
                    await send(_head(listener))
    if not listener.is_gone:
        async with asyncio.timeout(_STALLED_S):
            await send({"type": "http.response.body", "body": b"", "more_body": False})


def _head(listener: Listener) -> Message:
    """Return the response head. The backend's own content type is not passed on: it could claim to be a page."""
    given = dict(listener.headers)
    kind = _JSON if b"json" in given.get(b"content-type", _EVENTS) else _EVENTS
    kept_headers = [head for head in listener.headers if head[0].startswith(_TOLD) or head[0] == _RETRY_AFTER]
    headers = [(b"content-type", kind), *kept_headers, *_HEADERS]
    return {"type": "http.response.start", "status": listener.status, "headers": headers}


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _end(request_task: "asyncio.Task[None]", listener: Listener) -> None:
    """Let a complete answer settle; end an abandoned one at once."""
    if listener.has_ended and not listener.is_gone:
        await asyncio.wait((request_task,), timeout=_STOP_S)
    listener.leave()
    request_task.cancel()
    await asyncio.wait((request_task,), timeout=_STOP_S)
