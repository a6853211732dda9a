"""Hot routes: they carry the traffic and bypass ASGI; uvicorn serves all other routes."""

from asyncio import Transport
from collections.abc import Mapping
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from gateway.dialects.base import Route
from gateway.http.desk import RequestHandler
from gateway.http.exchange import Exchange
from runtime.errors import BodyTooLarge, KeyInvalid, RequestInvalid, ServiceError
from runtime.http.connections import BoundedProtocol
from runtime.http.hosts import Hosts
from runtime.http.repeated import RepeatedHead

BODY_S = 30.0

_NO_KEY = "No API key was given. Send 'Authorization: Bearer YOUR_KEY'."


class HotProtocol(BoundedProtocol):
    """A connection for hot requests and others, in any order."""

    desk: RequestHandler

    # The request being read, and the one to be answered next.
    _reading: Exchange | None = None
    _answering: Exchange | None = None
    _answering_asgi: RequestResponseCycle | None = None
    _body_due_s: float | None = None
    # Whether the parser has seen the end of a message, and no bytes after it.
    _is_between = False
    _repeated: RepeatedHead[tuple[Route, str, bytes, str]]

    @classmethod
    def serving(cls, desk: RequestHandler, hosts: Hosts | None = None) -> type["HotProtocol"]:
        """Return the protocol class for uvicorn's connections; without `hosts` it allows any host name."""
        return type(cls.__name__, (cls,), {"desk": desk, "hosts": hosts or Hosts()})

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        self._repeated = RepeatedHead()
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if self._is_between and _is_free(self.cycle) and (body := self._repeated.body_in(data)):
            self._repeat(body)
            return
        super().data_received(data)
        if self._is_between:
            self._learn_head(data)

    def _repeat(self, body: bytes) -> None:
        """Take a request whose head was parsed before, without parsing it again."""
        assert self._repeated.meaning
        route, token, traceparent, address = self._repeated.meaning
        self._unset_keepalive_if_required()
        self._waiting_since_s = None
        exchange = Exchange(self, route, keep_alive=True, is_chunkable=True)
        exchange.traceparent = traceparent
        exchange.address = address
        exchange.is_whole = True
        self.cycle = self._answering = exchange  # type: ignore[assignment]
        if exchange.take(body) > self.desk.body_bytes_max:
            exchange.problem = self._too_large()
            exchange.refuse(exchange.problem)
            return
        self._look_up(exchange, token)
        if exchange.caller:
            self._start(exchange, self._answer(exchange))

    def _learn_head(self, data: bytes) -> None:
        """Remember the head of a usual hot request: the next one may begin with the same."""
        exchange = self._answering
        if exchange is None or exchange.caller is None or not (exchange.keep_alive and exchange.is_whole):
            return
        if not exchange.expects_word and exchange.raw and data.endswith(exchange.raw):
            meaning = (exchange.route, _token(self._fields), exchange.traceparent, exchange.address)
            self._repeated.learn(data, meaning)

    # Called by the parser.

    def on_message_begin(self) -> None:
        """Begin a request; further ASGI state is made only if the request turns out to be for ASGI."""
        self._is_between = False
        self.url = b""
        self.expect_100_continue = False
        self.headers = []
        self._reading = None

    def on_body(self, body: bytes) -> None:
        exchange = self._reading
        if exchange is None:
            super().on_body(body)
            return
        self._kept_bytes = 0
        if exchange.problem is None and exchange.take(body) > self.desk.body_bytes_max:
            self._blame(exchange, self._too_large())

    def on_message_complete(self) -> None:
        if self._is_offer:
            return
        self._check_trailers()
        self._is_between = True
        exchange, self._reading = self._reading, None
        if exchange is None:
            super().on_message_complete()
            return
        exchange.is_whole = True
        self._body_due_s = None
        if exchange is self._answering:
            self._go_on(exchange)

    def _begin_request(self) -> None:
        route = self._route() if self._method == b"POST" else None
        if route is None:
            self._begin_asgi()
            return
        is_chunkable = self._version != "1.0"
        keep_alive = is_chunkable and self.parser.should_keep_alive()
        exchange = Exchange(self, route, keep_alive=keep_alive, is_chunkable=is_chunkable)
        exchange.expects_word = self.expect_100_continue
        exchange.traceparent = self._fields.get(b"traceparent", b"")
        exchange.address = self.desk.proxies.caller(self._peer, self.headers) if self.desk.proxies else self._peer
        self._reading = exchange
        self._look_at_head(exchange)
        before, self.cycle = self.cycle, exchange  # type: ignore[assignment]
        if _is_free(before):
            self._take_turn(exchange)
        else:
            self.flow.pause_reading()
            self.pipeline.appendleft((exchange, self.app))  # type: ignore[arg-type]

    def _route(self) -> Route | None:
        if route := self.desk.routes.get(self.url):
            return route
        path = httptools.parse_url(self.url).path
        return self.desk.routes.get(path)

    def _begin_asgi(self) -> None:
        url, headers, expects = self.url, self.headers, self.expect_100_continue
        HttpToolsProtocol.on_message_begin(self)
        self.url, self.headers, self.expect_100_continue = url, headers, expects
        self.scope["headers"] = headers
        if self.desk.proxies:
            self._take_proxys_word()
        HttpToolsProtocol.on_headers_complete(self)

    def _take_proxys_word(self) -> None:
        proxies, port = self.desk.proxies, self.client[1] if self.client else 0
        self.scope["client"] = (proxies.caller(self._peer, self.headers), port)
        self.scope["scheme"] = proxies.scheme(self._peer, self.headers) or self.scope["scheme"]

    def _look_at_head(self, exchange: Exchange) -> None:
        """Check size and coding of the body, and look up the caller."""
        fields = self._fields
        length = fields.get(b"content-length", b"")
        if length and int(length) > self.desk.body_bytes_max:
            exchange.problem = self._too_large()
        elif fields.get(b"content-encoding", b"identity").lower() != b"identity":
            exchange.problem = RequestInvalid("Content-Encoding: send the body uncompressed.")
        elif not (token := _token(fields)):
            exchange.problem = KeyInvalid(_NO_KEY)
        else:
            self._look_up(exchange, token)

    def _look_up(self, exchange: Exchange, token: str) -> None:
        exchange.caller = self.desk.known(token)
        if exchange.caller is None:
            self._start(exchange, self._identify(exchange, token))

    def _too_large(self) -> ServiceError:
        return BodyTooLarge.of_request(self.desk.body_bytes_max)

    async def _identify(self, exchange: Exchange, token: str) -> None:
        """Look up the caller; read no more of the request until then."""
        self.flow.pause_reading()
        try:
            exchange.caller = await self.desk.identify(token, exchange.address)
        except Exception as error:  # noqa: BLE001 - the request's edge
            exchange.problem = error
        finally:
            self._ended(exchange)
        if not self.transport.is_closing():
            if not self.pipeline:
                self.flow.resume_reading()
            if exchange is self._answering:
                self._go_on(exchange)

    # Order of answers.

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        """Begin the next of several requests that were sent at once."""
        if isinstance(cycle, Exchange):
            self._take_turn(cycle)
        else:
            self._answering_asgi = cycle
            super()._start_asgi_task(cycle, app)

    def _take_turn(self, exchange: Exchange) -> None:
        self._answering = exchange
        # A request sent before its turn is not read until then, so its body is due only from now on.
        self._body_due_s = None if exchange.is_whole else self.loop.time() + BODY_S
        if exchange.expects_word and not exchange.is_whole and not exchange.problem:
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self._go_on(exchange)

    def _go_on(self, exchange: Exchange) -> None:
        """Do the next possible step for the request to be answered next."""
        if exchange.response_complete or exchange.task:
            return
        if exchange.problem:
            exchange.refuse(exchange.problem)
        elif exchange.is_whole:
            self._start(exchange, self._answer(exchange))

    def _blame(self, exchange: Exchange, problem: ServiceError) -> None:
        exchange.problem = problem
        exchange.drop()
        if exchange is self._answering:
            self._go_on(exchange)

    def _refuse(self, error: ServiceError) -> None:
        """Refuse the request being read, for example for invalid HTTP, after earlier ones are answered."""
        if self._reading:
            self._problem = error
            self._blame(self._reading, error)
        else:
            super()._refuse(error)

    def _start(self, exchange: Exchange, work: Any) -> None:
        exchange.task = self.loop.create_task(work)
        self.tasks.add(exchange.task)

    def _ended(self, exchange: Exchange) -> None:
        if exchange.task:
            self.tasks.discard(exchange.task)
            exchange.task = None

    async def _answer(self, exchange: Exchange) -> None:
        try:
            await self.desk.answer(exchange)
        finally:
            self._ended(exchange)
            if not exchange.response_complete and not exchange.disconnected:
                self.transport.abort()  # cut off, so that the partial answer does not look complete

    def note_answered(self, exchange: Exchange) -> None:
        """Continue after the last byte of an answer is written."""
        if not exchange.is_whole:
            self._end_reading(exchange.problem)
        elif not exchange.keep_alive:
            self.transport.close()
        self.server_state.total_requests += 1
        self._waiting_since_s = self.loop.time()
        if self.transport.is_closing():
            return
        if self.flow.read_paused:
            self.flow.resume_reading()
        if self.pipeline:
            self._waiting_since_s = None
            self._start_asgi_task(*self.pipeline.pop())

    # The connection.

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._answering_asgi:  # uvicorn notifies only the last request, which may wait behind this one
            self._answering_asgi.disconnected = True
            self._answering_asgi.message_event.set()
        waiting = [cycle for cycle, _ in self.pipeline]
        for exchange in (self._answering, self._reading, *waiting):
            if isinstance(exchange, Exchange):
                exchange.disconnected = True
                if exchange.task and not exchange.response_complete:
                    exchange.task.cancel()
        self._forget_requests()

    def _forget_requests(self) -> None:
        """Break reference cycles with the connection: otherwise 10 KB stay until the garbage collector runs."""
        self._answering = self._reading = self._answering_asgi = None
        self.pipeline.clear()
        if isinstance(self.cycle, Exchange):
            self.cycle = None  # type: ignore[assignment]

    def shutdown(self) -> None:
        """Shut down; do not wait for incomplete requests."""
        if self._reading:
            self.transport.close()
        else:
            super().shutdown()

    def _due_s(self) -> float | None:
        return super()._due_s() or self._body_due_s

    def _give_up(self) -> None:
        exchange = self._reading
        if exchange and exchange is self._answering and not exchange.response_complete:
            self._body_due_s = None
            self._blame(exchange, RequestInvalid(f"The body did not arrive within {BODY_S:.0f} s."))
        else:
            super()._give_up()


def _token(fields: Mapping[bytes, bytes]) -> str:
    """Return the bearer token, or the key header of Anthropic's clients; empty if there is none."""
    given = fields.get(b"authorization", b"")
    if given[:7].lower() == b"bearer ":
        return given[7:].strip().decode("latin-1")
    return fields.get(b"x-api-key", b"").strip().decode("latin-1")


def _is_free(before: RequestResponseCycle | None) -> bool:
    """Return whether no answer is in progress; before the first request there is no cycle."""
    return before is None or before.response_complete
