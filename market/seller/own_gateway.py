"""Client of our own gateway beside this process: its idleness, its preemptible key, its answers and its ledger."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import httpx
import msgspec
from msgspec import Struct

from accounting.money import format_usd
from market.protocol.channels.job import Kind
from market.seller.store import RecordedSale
from runtime.data_folder import ADMIN_HEADER, DataFolder
from runtime.sse import EventSplitter

ASK_S = 10.0
IDLE_WAIT_S = 25.0
CONNECT_S = 5.0
SILENCE_S = 120.0
CONNECTIONS_MAX = 256
ANSWER_BYTES_MAX = 2**22
_PATHS: dict[Kind, str] = {"chat": "/chat/completions", "completion": "/completions"}


class GatewayAway(Exception):
    """Our own gateway does not run, or does not answer."""


class UpstreamRefused(Exception):
    """Our own gateway refuses this request; `code` is its error's code."""

    def __init__(self, status: int, code: str) -> None:
        super().__init__(f"{status} {code}")
        self.status = status
        self.code = code


class SpareModel(Struct, frozen=True):
    """One model of the gateway, as `/admin/idle` reports it."""

    id: str
    slots_free: int
    slots: int
    context_tokens: int | None = None
    weights_sha256: str | None = None
    tokenizer_sha256: str | None = None
    tokenizer_path: str | None = None
    quantization: str | None = None


_STATE_MAX = 200


class Idle(Struct, frozen=True):
    """The gateway's idle state; `version` changes whenever the rest does."""

    queue_empty_s: float
    own_in_flight: int
    preemptible_jobs: int
    models: tuple[SpareModel, ...]
    own_batches: int = 0
    version: int = 0
    gpu_percent: float | None = None
    is_on_battery: bool | None = None
    is_paused: bool = False


class _PreemptibleKey(Struct, frozen=True):
    key: str


@dataclass(frozen=True, slots=True)
class Running:
    """The gateway's address and admin token."""

    base_url: str
    admin_token: str


class OwnGateway:
    """Client of one data directory's gateway, over loopback. `find` looks up its address, since it may restart.

    Every method raises GatewayAway if no gateway runs.
    """

    def __init__(self, find: Callable[[], Running | None]) -> None:
        self._find = find
        self._key: str | None = None
        # Each new key revokes the one before, so concurrent jobs share one request for it.
        self._asking_key = asyncio.Lock()
        limits = httpx.Limits(max_connections=CONNECTIONS_MAX, keepalive_expiry=4.0)
        # Ignore the environment's proxies: they would get the key, and cannot reach this loopback. Load no CA
        # certificates either: reading them takes longer than the rest of a start.
        trust = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._http = httpx.AsyncClient(trust_env=False, limits=limits, follow_redirects=False, verify=trust)

    @classmethod
    def of_folder(cls, folder: DataFolder) -> "OwnGateway":
        def find() -> Running | None:
            facts = folder.read_running()
            return None if facts is None else Running(str(facts["base_url"]), str(facts["admin_token"]))

        return cls(find)

    async def aclose(self) -> None:
        await self._http.aclose()

    async def idle(self, version: int | None = None, state: str = "") -> Idle:
        """Return how idle the gateway is; with a version, wait until that changes or the wait ends.

        `state` is the agent's own state. Raises GatewayAway if it gives no valid answer.
        """
        wait = "" if version is None else f"&wait_s={IDLE_WAIT_S:g}&version={version}"
        query = f"?state={quote(state[:_STATE_MAX])}{wait}"
        patience_s = ASK_S if version is None else ASK_S + IDLE_WAIT_S
        answer = await self._admin("GET", f"/admin/idle{query}", None, patience_s)
        try:
            return msgspec.json.decode(answer.content, type=Idle)
        except msgspec.MsgspecError as error:
            raise GatewayAway(f"/admin/idle: {error}") from None

    async def preemptible_key(self) -> str:
        """Return the key for sending jobs, as far as we know it.

        Raises:
            UpstreamRefused: the gateway issues none.
            GatewayAway: it gives no valid answer.
        """
        async with self._asking_key:
            if self._key is None:
                answer = await self._admin("POST", "/admin/preemptible-key", {}, ASK_S)
                try:
                    self._key = msgspec.json.decode(answer.content, type=_PreemptibleKey).key
                except msgspec.MsgspecError as error:
                    raise GatewayAway(f"/admin/preemptible-key: {error}") from None
            return self._key

    async def book(self, sale: RecordedSale) -> None:
        """Report a sale to the gateway's ledger; repeating it changes nothing.

        Raises:
            UpstreamRefused: the ledger has different figures and keeps them.
        """
        body = {
            "channel": sale.channel,
            "lane": sale.lane,
            "seq": sale.seq,
            "amount": format_usd(sale.amount_nano),
            "model": sale.model,
        }
        await self._admin("POST", "/admin/market/sales", body, ASK_S)

    @asynccontextmanager
    async def answer(self, kind: Kind, body: dict[str, Any]) -> AsyncIterator[AsyncIterator[bytes]]:
        """Yield the data of each event of a streamed answer. Leaving the block stops the gateway's work.

        Raises:
            UpstreamRefused: the gateway answers with an error instead.
        """
        running = self._running()
        url = running.base_url + _PATHS[kind]
        for attempt in range(2):
            key = await self.preemptible_key()
            request = self._http.build_request(
                "POST", url, json=body, timeout=httpx.Timeout(SILENCE_S, connect=CONNECT_S)
            )
            request.headers["authorization"] = f"Bearer {key}"
            response = await self._send(request)
            # A restarted gateway does not know its earlier preemptible keys.
            if response.status_code == 401 and attempt == 0:
                await response.aclose()
                if self._key == key:
                    self._key = None
                continue
            break
        try:
            if response.status_code != 200:
                raise UpstreamRefused(response.status_code, await _code_of(response))
            yield _events_of(response)
        finally:
            await response.aclose()

    async def _send(self, request: httpx.Request) -> httpx.Response:
        try:
            return await self._http.send(request, stream=True)
        except httpx.HTTPError as error:
            raise GatewayAway(type(error).__name__) from None

    async def _admin(
        self, method: str, path: str, body: dict[str, Any] | None, patience_s: float
    ) -> httpx.Response:
        running = self._running()
        url = running.base_url.removesuffix("/v1") + path
        headers = {ADMIN_HEADER: running.admin_token}
        try:
            async with asyncio.timeout(patience_s):
                answer = await self._http.request(method, url, headers=headers, json=body, timeout=patience_s)
        except (httpx.HTTPError, TimeoutError) as error:
            raise GatewayAway(f"{path}: {type(error).__name__}") from None
        if 400 <= answer.status_code < 500 and answer.status_code not in (401, 403, 404, 408, 429):
            raise UpstreamRefused(answer.status_code, path)
        if answer.status_code != 200:
            raise GatewayAway(f"{path}: {answer.status_code}")
        return answer

    def _running(self) -> Running:
        running = self._find()
        if running is None:
            raise GatewayAway("no gateway runs on this data directory")
        return running


async def _events_of(response: httpx.Response) -> AsyncIterator[bytes]:
    """Yield events. Raises GatewayAway if the answer breaks off."""
    events = EventSplitter()
    try:
        async for piece in response.aiter_raw():
            for data in events.feed(piece):
                yield data
    except httpx.HTTPError as error:
        raise GatewayAway(type(error).__name__) from None
    for data in events.end():
        yield data


async def _code_of(response: httpx.Response) -> str:
    """Return the code of an error in OpenAI's form, empty if there is none."""
    body = b""
    try:
        async for piece in response.aiter_raw():
            body += piece
            if len(body) > ANSWER_BYTES_MAX:
                break
        return str(msgspec.json.decode(body)["error"]["code"] or "")
    except (httpx.HTTPError, msgspec.MsgspecError, LookupError, TypeError):
        return ""
