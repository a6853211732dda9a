"""Handler of the hot routes: it turns an exchange into a call and has it answered in the caller's dialect."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import structlog

from gateway.dialects.base import Route, Writer
from gateway.dialects.model_loading import Upkeep, UpkeepAsked, answer_of
from gateway.dialects.routes import ROUTES
from gateway.dialects.stored_responses.store import ResponseStore
from gateway.errors import RoleForbids, to_api_error
from gateway.http.exchange import Exchange, Headers
from gateway.identity.caller import Caller
from gateway.identity.gate import Gate
from gateway.identity.keys import Keys
from gateway.lanes.base import Call
from gateway.lanes.cluster.comments import LOADING
from gateway.requests.client import Client, ClientSink
from gateway.requests.factory import RequestPaths
from gateway.requests.response_headers import printable
from gateway.settings import ServerSettings
from runtime.http.api_error import ApiError
from runtime.http.proxies import TrustedProxies
from runtime.request_ids import HEADER

log = structlog.get_logger(__name__)

_DEFECT = 500
_EVENTS = "text/event-stream"
_FOR_PREEMPTIBLE = ("/v1/chat/completions", "/v1/completions")


class GenerateHandler:
    """Handler that gateway.http.hot calls for hot requests. A request always has the id of its exchange."""

    def __init__(
        self,
        requests: RequestPaths,
        responses: ResponseStore,
        gate: Gate,
        keys: Keys,
        settings: ServerSettings,
        routes: Iterable[Route] = ROUTES,
    ) -> None:
        self.routes = {route.path.encode(): route for route in routes}
        self.body_bytes_max = settings.body_bytes_max
        self.proxies = TrustedProxies(settings.trusted_proxies)
        self.known = keys.cached
        self.identify = gate.admit_any
        self._requests = requests
        self._responses = responses

    async def answer(self, exchange: Exchange) -> None:
        route, caller = exchange.route, exchange.caller
        assert caller
        try:
            if caller.is_preemptible:
                await self._host(exchange, caller)
                return
            try:
                question = route.read(exchange.raw)
            except UpkeepAsked as asked:
                await self._look_after(exchange, caller, asked.upkeep)
                return
            exchange.drop()  # the question has the bytes
            if route.resolve:
                question = await route.resolve(self._responses, caller, question)
            call = Call(
                exchange.id,
                question.kind,
                question.request,
                question.raw,
                caller.user_id,
                question.content_type,
                exchange.traceparent.decode("latin-1"),
                exchange.address,
            )
            client: Client = exchange
            if route.writer:
                client = _Translated(exchange, partial(route.writer_for, question, exchange.id), question.warning)
            await self._requests.ordinary.serve(caller, call, client)
        except Exception as error:
            if to_api_error(error).status == _DEFECT:
                log.error("request failed", request_id=exchange.id, exc_info=error)
            exchange.refuse(error)

    async def _host(self, exchange: Exchange, caller: Caller) -> None:
        """Serve a preemptible request.

        Each request is a separate tenant, so it shares no prompt cache with others.
        """
        if exchange.route.path not in _FOR_PREEMPTIBLE:
            raise RoleForbids(f"Preemptible requests may only use {' and '.join(_FOR_PREEMPTIBLE)}.")
        question = exchange.route.read(exchange.raw)
        exchange.drop()
        tenant = f"{caller.user_id}:{exchange.id}"
        call = Call(exchange.id, question.kind, question.request, question.raw, tenant, is_preemptible=True)
        await self._requests.preemptible.serve(caller, call, exchange)

    async def _look_after(self, exchange: Exchange, caller: Caller, upkeep: Upkeep) -> None:
        await self._requests.model_loading.look_after(caller, exchange.id, upkeep, exchange.address)
        headers = [(b"content-type", b"application/json"), (HEADER, exchange.id.encode())]
        exchange.begin(200, headers, is_stream=False)
        exchange.write(answer_of(upkeep))
        exchange.finish()


class _Translated(ClientSink):
    """An exchange whose answer is translated to another API; `warning` is a notice for the caller."""

    def __init__(self, exchange: Exchange, writer_for: Callable[[int], Writer | None], warning: str = "") -> None:
        super().__init__(exchange)
        self._exchange = exchange
        self._writer_for = writer_for
        self._warning = warning
        self._writer: Writer | None = None

    def begin(self, status: int, headers: Headers, *, is_stream: bool) -> None:
        self._writer = writer = self._writer_for(status)
        if writer:
            kept = [(name, value) for name, value in headers if name != b"content-type"]
            headers = [(b"content-type", writer.content_type.encode()), *kept]
        if self._warning:
            headers = [*headers, (b"x-millrace-warning", printable(self._warning))]
        super().begin(status, headers, is_stream=is_stream)

    def write(self, data: bytes) -> None:
        if self._writer and not (data == LOADING and self._writer.content_type == _EVENTS):
            data = self._writer.feed(data)
        self._exchange.write(data)

    @property
    def keeps_calls(self) -> bool:
        return self._writer is not None and self._writer.keeps_calls

    def finish(self, trailers: Sequence[tuple[bytes, bytes]] = ()) -> None:
        if self._writer:
            last = self._writer.end()
            if self._writer.broken and not self._exchange.is_stream:
                super().break_off(self._writer.broken)
                return
            self._exchange.write(last)
        super().finish(trailers)

    def break_off(self, error: ApiError) -> None:
        if self._writer and self._exchange.is_stream:
            self._exchange.write(self._writer.fail(error))
            self._exchange.finish()
        else:
            super().break_off(error)
