"""Calls to etcd's JSON gateway (v3) at whichever member answers."""

import ssl
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

import httpx
import orjson

_LINE_BYTES_MAX = 2**24
_CONNECTIONS = httpx.Limits(max_connections=64, max_keepalive_connections=16)
Answer = dict[str, Any]


class EtcdUnavailable(Exception):
    """Raised if etcd does not answer or cannot decide. It may have carried out the call."""


class EtcdMembers:
    """Asks the member that answered last, and the others if it does not answer. Belongs to one event loop.

    Args:
        urls: of the members, such as `http://10.0.0.1:2379`.
        tls: for members behind https.
        timeout_s: longest wait for one member.
    """

    def __init__(self, urls: Sequence[str], tls: ssl.SSLContext | None = None, timeout_s: float = 3.0) -> None:
        self._urls = [url.rstrip("/") for url in urls]
        self._at = 0
        self._client = httpx.AsyncClient(
            verify=tls or ssl.create_default_context(), timeout=timeout_s, trust_env=False, limits=_CONNECTIONS
        )

    async def aclose(self) -> None:
        await self._client.aclose()

    async def call(self, what: str, body: Mapping[str, Any]) -> Answer:
        """Ask one member after the other, although an earlier one may have carried out the call without answering.

        Raises:
            EtcdUnavailable: no member answers.
        """
        reason = "no member is named"
        for _ in self._urls:
            try:
                return _answer(await self._client.post(f"{self._urls[self._at]}/v3/{what}", json=body))
            except (httpx.HTTPError, _Refused) as error:
                reason = str(error) or type(error).__name__
            self._turn()
        raise EtcdUnavailable(f"no member of etcd answers: {reason}")

    async def follow(self, what: str, body: Mapping[str, Any], silence_s: float) -> AsyncGenerator[Answer]:
        """Yield one member's results as they arrive, until it is silent for `silence_s`.

        Raises:
            EtcdUnavailable: it broke off, or an answer is not one of etcd's; ask again.
        """
        url = f"{self._urls[self._at]}/v3/{what}"
        patience = httpx.Timeout(self._client.timeout.connect, read=silence_s)
        try:
            async with self._client.stream("POST", url, json=body, timeout=patience) as response:
                left = b""
                async for piece in response.aiter_bytes():
                    *lines, left = (left + piece).split(b"\n")
                    for line in lines:
                        yield _result(line)
                    if len(left) > _LINE_BYTES_MAX:
                        raise EtcdUnavailable("etcd's answer is too large")
        except httpx.ReadTimeout:
            return
        except httpx.HTTPError as error:
            self._turn()
            raise EtcdUnavailable(f"etcd closed the connection: {type(error).__name__}") from None
        raise EtcdUnavailable("etcd ended a stream that should continue")

    def _turn(self) -> None:
        self._at = (self._at + 1) % len(self._urls)


class _Refused(Exception):
    """The member answered but cannot serve: it has lost the others, or a leader is being elected."""


def _answer(response: httpx.Response) -> Answer:
    try:
        answer = orjson.loads(response.content.partition(b"\n")[0] or b"{}")
    except orjson.JSONDecodeError:
        answer = None
    if response.status_code != 200 or not isinstance(answer, dict) or "error" in answer:
        raise _Refused(f"status {response.status_code}")
    found: Answer = answer.get("result", answer)
    return found


def _result(line: bytes) -> Answer:
    try:
        answer = orjson.loads(line or b"{}")
    except orjson.JSONDecodeError:
        raise EtcdUnavailable("etcd's answer is not JSON") from None
    if not isinstance(answer, dict) or "error" in answer:
        raise EtcdUnavailable("etcd ended a stream that should continue")
    found: Answer = answer.get("result", {})
    return found
