"""Send one request of a batch through the same pipeline as any request, and collect its answer."""

from collections.abc import Callable, Sequence

import structlog

from gateway.batches.reply import BatchReply
from gateway.dialects.base import Question, Route, Writer
from gateway.errors import to_api_error
from gateway.http.exchange import Headers
from gateway.identity.caller import Caller
from gateway.lanes.base import Call
from gateway.requests.client import Client
from gateway.requests.serve import RequestPath
from runtime.errors import LaneFailed, RateLimited
from runtime.http.api_error import ApiError

log = structlog.get_logger(__name__)

ANSWER_BYTES_MAX = 64 * 2**20


class _AnswerCollector(Client):
    """The client of a batch request, which has no connection. It is gone once its batch ends it."""

    def __init__(self, route: Route, question: Question, request_id: str, is_left: Callable[[], bool]) -> None:
        self.status = 0
        self.retry_after_s: float | None = None
        self._route = route
        self._question = question
        self._request_id = request_id
        self._is_left = is_left
        self._writer: Writer | None = None
        self._parts: list[bytes] = []
        self._bytes = 0

    @property
    def body(self) -> bytes:
        return b"".join(self._parts)

    def begin(self, status: int, headers: Headers, *, is_stream: bool) -> None:  # noqa: ARG002 - none is
        self.status = status
        self.retry_after_s = _retry_after_s(headers)
        self._writer = self._route.writer_for(self._question, self._request_id, status)

    def write(self, data: bytes) -> None:
        self._keep(self._writer.feed(data) if self._writer else data)

    async def drain(self) -> None:
        """Return at once: there is always room."""

    @property
    def is_gone(self) -> bool:
        return self._is_left()

    def follow(self) -> None:
        """Do nothing: all data is accepted at once."""

    def finish(self, trailers: Sequence[tuple[bytes, bytes]] = ()) -> None:  # noqa: ARG002
        if self._writer:
            self._keep(self._writer.end())
            if self._writer.broken:
                self.break_off(self._writer.broken)
        if self._bytes > ANSWER_BYTES_MAX:
            self.break_off(to_api_error(LaneFailed(f"The answer is larger than {ANSWER_BYTES_MAX} bytes.")))

    def break_off(self, error: ApiError) -> None:
        """Replace the received data with the error."""
        self.status = error.status
        self.retry_after_s = _retry_after_s(error.headers)
        self._parts = [self._route.error_body(error)]

    def _keep(self, data: bytes) -> None:
        self._bytes += len(data)
        if self._bytes <= ANSWER_BYTES_MAX:
            self._parts.append(data)


async def send_request(
    requests: RequestPath,
    caller: Caller,
    route: Route,
    question: Question,
    request_id: str,
    is_left: Callable[[], bool] = lambda: False,
) -> BatchReply:
    """Return the answer, or the error that the same request would have got on a connection.

    If this is cancelled, `is_left` says whether the batch ends the request or this gateway stops.
    """
    call = Call(request_id, question.kind, question.request, question.raw, caller.user_id, question.content_type)
    client = _AnswerCollector(route, question, request_id, is_left)
    is_limit = False
    try:  # The edge of a request, as for requests on connections.
        await requests.serve(caller, call, client)
    except Exception as error:
        refused = to_api_error(error)
        if refused.status == 500:
            log.error("request failed", request_id=request_id, exc_info=error)
        client.break_off(refused)
        is_limit = isinstance(error, RateLimited)
    return BatchReply(client.status, request_id, client.body, client.retry_after_s, is_limit)


def _retry_after_s(headers: Headers | tuple[tuple[bytes, bytes], ...]) -> float | None:
    header = next((value for name, value in headers if name == b"retry-after"), b"")
    return float(header) if header.isdigit() else None
