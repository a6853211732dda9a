"""The pool lane: whole copies of models behind any OpenAI-compatible server; bytes pass unchanged."""

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from msgspec import structs

from cluster.models.folding import folds
from gateway.dialects.openai import GENERATES
from gateway.errors import LaneLimited, LaneUnreachable, MessagesRefused
from gateway.lanes.aliases import Aliases
from gateway.lanes.base import Answer, Call, Offer
from gateway.lanes.body_rewriter import for_backend, for_replica, with_fields
from gateway.lanes.pool.members import BACKENDS_MAX, Pool
from gateway.lanes.pool.queries import CONNECTIONS_MAX
from gateway.lanes.pool.stored import PoolStore
from gateway.lanes.relay import relay
from gateway.lanes.upstream import Upstream
from gateway.settings import LaneName, PoolBackend, PoolSettings
from gateway.settings.pool import BackendKind
from runtime.errors import LaneFailed
from runtime.http.client import Client

# Kinds that separate their prompt caches by a field of the request, so that other tenants learn nothing from
# answer times. https://docs.vllm.ai/en/latest/design/prefix_caching/
_SALTED: frozenset[BackendKind] = frozenset(("vllm",))


class _Chat(msgspec.Struct):
    messages: list[dict[str, Any]]


_chat = msgspec.json.Decoder(_Chat)


class PoolLane:
    """Offers the backends' last reported models, and reports the results of requests to the pool."""

    name: LaneName = "pool"

    def __init__(
        self,
        settings: PoolSettings,
        kept: Path | None = None,
        on_answer: Callable[[str, bool], None] = lambda _name, _was_down: None,
    ) -> None:
        """`kept` is the file of backends added and drained at run time; `on_answer` is passed to the pool."""
        self._settings = settings
        self._client = Client()
        self.probes = Client(CONNECTIONS_MAX)
        self.pool = Pool(settings, self.probes, PoolStore(kept) if kept else None, on_answer)
        self._upstreams: dict[str, tuple[PoolBackend, Upstream]] = {}

    async def start(self) -> None:
        """Return when every backend was probed once."""
        await self.pool.start()

    async def stop(self) -> None:
        await self.pool.stop()
        await self._client.close()
        await self.probes.close()

    def models(self) -> list[str]:
        return self.pool.models()

    def offers(self, model: str) -> list[Offer]:
        return self.pool.offers(model)

    @property
    def version(self) -> int:
        return self.pool.version

    def aliases(self) -> Aliases:
        """The current aliases in every lane."""
        return self.pool.aliases

    async def open(self, call: Call, offer: Offer, wait_s: float = math.inf) -> Answer:
        """Send the messages unchanged; fold them only if the chat template refuses them."""
        began_s = time.monotonic()
        until_s = began_s + wait_s
        try:
            upstream = self._upstream(offer)
            try:
                answer = await relay(upstream, call, self._body(call, offer), until_s=until_s)
            except MessagesRefused:
                folded = await self._ask_folded(upstream, call, offer, until_s)
                if folded is None:
                    raise
                answer = folded
        except LaneFailed as failure:
            if not isinstance(failure, LaneLimited):
                self.pool.doubt(offer.backend)
            raise
        if not offer.is_resident:
            self.pool.loaded(offer, time.monotonic() - began_s)
        return answer

    async def _ask_folded(self, upstream: Upstream, call: Call, offer: Offer, until_s: float) -> Answer | None:
        """Return the answer to the folded messages; None if the chat template refuses these, too."""
        for folded in _folded_calls(call):
            with contextlib.suppress(MessagesRefused):
                return await relay(upstream, folded, self._body(folded, offer), until_s=until_s)
        return None

    def _body(self, call: Call, offer: Offer) -> bytes:
        if call.request.millrace is None and not call.is_preemptible:
            return for_backend(call, offer.served_as)
        if call.is_preemptible:
            backend = self.pool.get(offer.backend)
            is_salted = backend is not None and backend.kind in _SALTED
            return for_backend(call, offer.served_as, salt=call.tenant if is_salted else None)
        return for_replica(call, offer) if _tells_tokens(call, offer) else for_backend(call, offer.served_as)

    def _upstream(self, offer: Offer) -> Upstream:
        """Return the upstream, cached for the backend's current configuration.

        Raises LaneUnreachable if it was removed.
        """
        backend = self.pool.get(offer.backend)
        if backend is None:
            raise LaneUnreachable(f"{offer.backend} was removed from the pool")
        settings = backend.settings
        found = self._upstreams.get(offer.backend)
        if found and found[0] is settings:
            return found[1]
        upstream = Upstream(
            name=settings.name,
            client=self._client,
            base_url=settings.base_url,
            headers=backend.headers,
            first_byte_s=self._settings.total_s,  # `open` is told how long to wait
            silence_s=self._settings.silence_s,
            total_s=self._settings.total_s,
            doubt=partial(self.pool.doubt, settings.name),
        )
        if len(self._upstreams) >= BACKENDS_MAX:
            self._upstreams.clear()
        self._upstreams[settings.name] = (settings, upstream)
        return upstream


def _tells_tokens(call: Call, offer: Offer) -> bool:
    """Return whether the backend can state its stream's tokens, and has the expected weights."""
    extras = call.request.millrace
    if extras is None or not extras.resumable or not call.request.is_stream or call.kind not in GENERATES:
        return False
    return bool(offer.weights) and extras.weights in (None, offer.weights)


def _folded_calls(call: Call) -> Iterator[Call]:
    """Yield the call with folded messages for ever stricter templates; nothing if folding changes nothing."""
    try:
        messages = _chat.decode(call.raw).messages
    except (msgspec.DecodeError, RecursionError):
        return  # Nested too deep to be serialized: the refusal remains.
    for folded in folds(messages):
        yield structs.replace(call, raw=with_fields(call, {"messages": folded}))
