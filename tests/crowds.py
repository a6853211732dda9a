"""Crowds of callers at one gateway or several, and the keys, limits and credits that they come with."""

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import aiohttp
import httpx

from gateway.api.admin import HEADER
from runtime.data_folder import DataFolder
from tests.fakes.counting_provider import COMPLETION_TOKENS, KEY, PROMPT_TOKENS, CountingProvider
from tests.gateways import Gateway

FREE, PAID, DEAR = "free", "paid", "dear"
"""Models: of the pool; of the cloud, with free prompts, so that it costs what it may cost; and all paid."""
PAID_NANO = COMPLETION_TOKENS * 15_000
DEAR_NANO = PAID_NANO + PROMPT_TOKENS * 3_000
DEAR_HELD_NANO = 180 * 3_000 + PAID_NANO
"""The most that is put aside for one: its body has some 130 bytes, each of which may be a token."""
LONG_S = 60.0
_WORDS = count()


def settings(provider: CountingProvider, folder: Path, **more: str) -> dict[str, str]:
    """MILLRACE_* variables of a gateway with this provider as a free backend and as a cloud."""
    keys = folder / "cloud.keys"
    keys.write_text(f"OPENAI_KEY={KEY}\n")
    keys.chmod(0o600)
    backend = {"name": "desk", "base_url": provider.base_url, "kind": "openai", "models": [FREE]}
    model = {"model": "openai/fake", "key": "OPENAI_KEY", "base_url": provider.base_url, "max_output_tokens": 100}
    prices = {PAID: "0", DEAR: "3"}
    models = {
        name: model | {"prompt_usd_per_mtok": price, "completion_usd_per_mtok": "15"}
        for name, price in prices.items()
    }
    return {
        "POOL__BACKENDS": json.dumps([backend]),
        "CLOUD__MODELS": json.dumps(models),
        "CLOUD__KEYS_FILE": str(keys),
        **more,
    }


@dataclass(frozen=True)
class Reply:
    status: int
    headers: dict[str, str]
    body: dict[str, Any]

    @property
    def code(self) -> str | None:
        code: str | None = self.body.get("error", {}).get("code")
        return code

    @property
    def message(self) -> str:
        return str(self.body["error"]["message"])


@dataclass
class Replies:
    """The replies that a crowd got; a caller whose connection broke got none."""

    all: list[Reply] = field(default_factory=list)
    broken: int = 0

    @property
    def served(self) -> int:
        return sum(reply.status == 200 for reply in self.all)

    @property
    def refused(self) -> list[Reply]:
        return [reply for reply in self.all if reply.status != 200]

    def statuses(self) -> Counter[int]:
        return Counter(reply.status for reply in self.all)


async def crowd(
    gateways: Sequence[Gateway], key: str, size: int, model: str, replies: Replies | None = None
) -> Replies:
    """So many callers at the same moment, in turn at each gateway; `replies` may be looked at meanwhile."""
    replies = Replies() if replies is None else replies
    # A busy machine takes its time over so many.
    patience = aiohttp.ClientTimeout(total=LONG_S)
    connector = aiohttp.TCPConnector(limit=0)
    headers = {"authorization": f"Bearer {key}"}
    async with aiohttp.ClientSession(connector=connector, headers=headers, timeout=patience) as session:

        async def ask(gateway: Gateway) -> None:
            try:
                async with session.post(f"{gateway.base_url}/chat/completions", json=question(model)) as answer:
                    told = {name.lower(): value for name, value in answer.headers.items()}
                    replies.all.append(Reply(answer.status, told, await answer.json()))
            except aiohttp.ClientConnectionError:
                replies.broken += 1

        await asyncio.gather(*(ask(gateways[number % len(gateways)]) for number in range(size)))
    return replies


async def crowd_while_held(
    provider: CountingProvider, gateways: Sequence[Gateway], key: str, size: int, places: int
) -> Replies:
    """Many callers, few queue slots: no answer leaves before all others were refused."""
    replies = Replies()
    provider.hold()
    asking = asyncio.create_task(crowd(gateways, key, size, FREE, replies))
    try:
        async with asyncio.timeout(LONG_S):
            while not asking.done() and (provider.at_once < places or len(replies.all) < size - places):
                await asyncio.sleep(0.02)
    finally:
        provider.release()
    return await asking


def ask(gateway: Gateway, key: str, model: str) -> Reply:
    """One caller, after all others."""
    answer = gateway.http(key).post("/v1/chat/completions", json=question(model))
    return Reply(answer.status_code, dict(answer.headers), answer.json())


def question(model: str) -> dict[str, Any]:
    """No two are the same, and all are of one length: nothing can be answered from what was said before."""
    content = f"What turns all night? ({next(_WORDS):08})"
    return {
        "model": model,
        "messages": [{"role": "user", "content": content}],
        "max_tokens": COMPLETION_TOKENS,
        "temperature": 1,
    }


def new_key(gateway: Gateway, user: str, limits: Sequence[dict[str, str]] = ()) -> str:
    """A key for pool and cloud, with limits (`measure`, `amount`, `span`) of its own; a new user is added."""
    if user not in {each["user_id"] for each in order(gateway, "GET", "users")["users"]}:
        order(gateway, "POST", "users", {"user": user})
    key = order(gateway, "POST", "keys", {"name": user, "user": user, "lanes": ["pool", "cloud"]})
    for limit in limits:
        order(gateway, "PUT", "quotas", {"scope": f"key:{key['key_id']}", **limit})
    return str(key["api_key"])


def usd(amount_nano: int) -> str:
    return f"{amount_nano // 10**9}.{amount_nano % 10**9:09}"


def order(gateway: Gateway, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
    """What an instance admin asks for."""
    running = DataFolder(gateway.folder).read_running()
    assert running
    answer = httpx.request(
        method,
        f"{gateway.root}/admin/{path}",
        json=body,
        headers={HEADER: running["admin_token"]},
        timeout=30,
        trust_env=False,
    )
    assert answer.is_success, answer.text
    return answer.json()
