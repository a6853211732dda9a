"""Routes that run once for each Idempotency-Key: every POST and PUT of the accounting API."""

import re
from collections.abc import Callable, Coroutine
from typing import Any

import anyio
import anyio.to_thread
from fastapi import Request, Response
from fastapi.routing import APIRoute

from accounting.errors import IdempotencyConflict, InsufficientCredit, LedgerError
from gateway.api.authority import admitted
from gateway.billing.asked import HEADER, Answer, AskedBefore, Claim
from gateway.errors import PaymentRefused
from gateway.http.error_response import error_response
from runtime.errors import BodyTooLarge, RequestInvalid, ServiceError

REPLAYED = "Idempotent-Replayed"
MODE_HEADER = "x-millrace-payments"
"""Whether money is real: on every answer about payments."""
_KEY = re.compile(r"[!-~]{1,200}")
_BODY_MAX = 64 * 1024
_WRITES = frozenset({"POST", "PUT"})
_OF_PAYMENTS = tuple(f"/accounting/v1/{name}" for name in ("payments", "topups", "refunds", "payouts", "sellers"))


def key_of(request: Request) -> str:
    """The request's key. Raises RequestInvalid."""
    given = request.headers.getlist(HEADER)
    if len(given) != 1 or not _KEY.fullmatch(given[0]):
        raise RequestInvalid(
            f"Send one {HEADER} header of 1 to 200 visible ASCII characters, the same on every retry.",
            param=HEADER,
        )
    return given[0]


class KeyedRoute(APIRoute):
    """A route whose writes require an idempotency key; a repeated request gets the first answer again.

    It stores answers to requests that were carried out or finally refused. After an authentication error, an
    invalid request or a request to retry, the client may use the key again.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        if not _WRITES & (self.methods or set()):
            return handle

        async def answer_once(request: Request) -> Response:
            authority = await admitted(request)
            key, keyed_request = key_of(request), await _asked(request)
            before: AskedBefore = request.app.state.asked
            begun = await anyio.to_thread.run_sync(before.begin, authority.actor.name, key, keyed_request)
            if isinstance(begun, Answer):
                return _replayed(request, begun)
            return await _answered(handle, request, before, begun)

        return answer_once


def _replayed(request: Request, answer: Answer) -> Response:
    headers = {REPLAYED: "true"}
    payments_service = request.app.state.payments_service
    if payments_service is not None and request.url.path.startswith(_OF_PAYMENTS):
        headers[MODE_HEADER] = "live" if payments_service.is_live else "test"
    return Response(answer.body, answer.status, headers, "application/json")


async def _answered(
    handle: Callable[[Request], Coroutine[Any, Any, Response]], request: Request, before: AskedBefore, claim: Claim
) -> Response:
    answer: Answer | None = None
    try:
        try:
            response = await handle(request)
        except (ServiceError, LedgerError) as error:
            if not _is_final(error):
                raise
            response = error_response(error, request.url.path)
        answer = Answer(response.status_code, bytes(response.body))
        return response
    finally:
        # Do this even if the request was cancelled, so that a retry gets the result.
        with anyio.CancelScope(shield=True):
            if answer is None:
                await anyio.to_thread.run_sync(before.forget, claim)
            else:
                await anyio.to_thread.run_sync(before.end, claim, answer)


def _is_final(error: Exception) -> bool:
    """Whether this error is the final answer for the key: a retry would get the same decision."""
    return isinstance(error, InsufficientCredit | IdempotencyConflict | PaymentRefused)


async def _asked(request: Request) -> bytes:
    """Return the request's method, path, query and body as bytes, to compare retries. Raises BodyTooLarge."""
    body = await request.body()
    if len(body) > _BODY_MAX:
        raise BodyTooLarge.of_request(_BODY_MAX)
    return b"\0".join((request.method.encode(), request.url.path.encode(), request.url.query.encode(), body))
