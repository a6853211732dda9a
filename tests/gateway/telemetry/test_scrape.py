"""What Prometheus reads after a gateway has been through all that its metrics are about."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway.quota import Quota
from gateway.settings import CacheSettings, MeteringSettings
from gateway.settings.metering import TokenizerFile
from tests.accounting.tokenizer import make_tokenizer
from tests.gateway.http.edges import DONE, SSE, Answered, Edge, Writer, backend, chunk, said, until, whole
from tests.gateway.requests.roads import ANSWER, nothing_is_left, receive, road, send, stream

pytestmark = pytest.mark.anyio

Samples = dict[tuple[str, tuple[str, ...]], float]
# Nothing is paid for here; tests/gateway/test_billing.py sees what is charged and what the spool takes.
# Only paid streams and payments have these: tests/gateway/requests/test_rolling.py, tests/journeys/test_money.py.
# Preemptible requests: tests/gateway/lanes/preemptible/test_preemptible.py.
UNSEEN = {"millrace_hold_extensions_total", "millrace_payments_inbox", "millrace_preemptible_requests_total"}
UNFED = {"millrace_charged_nano_total", "millrace_spooled_settlements_total", "millrace_request_log_drops_total"}
# Read at the scrape: nothing is under way any more, and there is no machine, no Stripe, no other gateway.
LEVELS = {
    f"millrace_{name}"
    for name in (
        "in_flight",
        "queue_depth",
        "ledger_lag",
        "cluster_nodes",
        "cluster_epoch",
        "ledger_broken_rules",
        "ledger_epoch",
        "ledger_dropped_groups",
        "ledger_checkpoint_block",
        "ledger_unproven_events",
        "ledger_unproven_seconds",
        "payments_difference_nano",
        "payments_reconciled_seconds",
        "payments_unmatched",
    )
}


class Obedient:
    """Does what the question says: sits on it, fails, breaks off, takes its time, or answers."""

    def __init__(self, *obeys: str) -> None:
        self._obeys = obeys

    async def __call__(self, body: bytes, writer: Writer) -> None:
        question = json.loads(body)
        told = question["messages"][0]["content"]
        if told not in self._obeys:
            told = "answer"
        if told == "sit on it":
            await asyncio.Event().wait()
        if told == "take your time":
            await asyncio.sleep(0.2)
        if told == "fail":
            writer.write(whole(b"{}", b"500 No"))
        elif told == "count":
            writer.write(whole(json.dumps(json.loads(ANSWER) | {"usage": {"completion_tokens": 2}}).encode()))
        elif told == "break off":
            writer.write(SSE + chunk(said("The ")))
            writer.close()
        else:
            writer.write(stream("It ", "turns.") if question.get("stream") else whole(ANSWER))


@asynccontextmanager
async def two(tmp_path: Path) -> AsyncIterator[Edge]:
    """The first is asked first, as the second one weighs little; each does one thing at a time."""
    fields = {"kind": "vllm", "slots": 1}
    tokenizer = TokenizerFile.model_validate(make_tokenizer(tmp_path), from_attributes=True)
    async with (
        backend(Obedient("count", "sit on it", "fail", "break off", "take your time")) as one,
        backend(Obedient("count", "fail", "take your time")) as other,
        road(
            tmp_path,
            one.base_url,
            other.base_url,
            backend=fields,
            cache=CacheSettings(answers="deterministic"),
            metering=MeteringSettings(tokenizers={"m": tokenizer}, check_ratio=1),
        ) as running,
    ):
        pool: Any = running.services.lanes["pool"]
        light = pool.pool.find("second")
        light.settings = light.settings.model_copy(update={"weight": 0.01})
        light._renew()
        yield running


async def tell(running: Edge, told: str, key: str | None = None, **fields: Any) -> Answered:
    messages = [{"role": "user", "content": told}]
    return await receive(await send(running, key, messages=messages, **fields))


async def scrape(running: Edge) -> tuple[set[str], Samples]:
    """Names of all metrics, and the samples of those that have some."""
    reader, writer = await running.connect()
    writer.write(b"GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
    families = list(text_string_to_metric_families((await receive((reader, writer))).content.decode()))
    samples = {(s.name, tuple(s.labels.values())): s.value for family in families for s in family.samples}
    return {family.name + "_total" * (family.type == "counter") for family in families}, samples


async def test_everything_that_happens_is_counted(tmp_path: Path) -> None:
    async with two(tmp_path) as running:
        services = running.services
        for _ in range(24):
            assert (await tell(running, "answer")).status == 200
        assert (await tell(running, "count")).status == 200
        assert (await tell(running, "sit on it")).status == 200  # by the second one, which was asked as well
        together = [asyncio.create_task(tell(running, "take your time")) for _ in range(3)]
        assert [(await each).status for each in together] == [200] * 3
        assert (await tell(running, "fail")).status == 502
        joined = await tell(running, "break off", stream=True, millrace={"continue_on_failure": True})
        assert joined.content.endswith(DONE)
        broken = await tell(running, "break off", stream=True)
        assert broken.error["code"] == "upstream_broke_off"
        same = [await tell(running, "answer", temperature=0, seed=1) for _ in range(2)]
        assert [answered.headers.get("x-millrace-cache") for answered in same] == [None, "hit"]
        services.directory.users.add("ann")
        services.directory.quotas.set(Quota("user:ann", "requests", 1, "minute"))
        key = services.keys.create("ann's", ("pool",), user_id="ann")
        assert [(await tell(running, "answer", key)).status for _ in range(2)] == [200, 429]
        await nothing_is_left(running)
        await until(lambda: b"millrace_metering_difference_ratio_count{" in running.services.metrics.render(), 30)
        names, found = await scrape(running)

    assert found["millrace_requests_total", ("pool", "complete")] == 24 + 1 + 1 + 3 + 1 + 1 + 1
    assert found["millrace_requests_total", ("cache", "complete")] == 1
    assert found["millrace_requests_total", ("none", "refused")] == 1
    assert found["millrace_limit_refusals_total", ("requests",)] == 1
    assert found["millrace_limit_refusals_total", ("spend",)] == 0
    assert found["millrace_cache_hits_total", ("hit",)] == 1
    # On a slow machine more may be late.
    assert found["millrace_hedges_total", ("won",)] >= 1
    assert found["millrace_queue_seconds_count", ()] >= 1
    # Each of the two failed once before its first byte, the first one twice behind it.
    assert found["millrace_upstream_errors_total", ("pool", "failed")] >= 2
    assert found["millrace_upstream_errors_total", ("pool", "broke_off")] == 2
    assert found["millrace_lane_failures_total", ("pool",)] >= 1
    assert found["millrace_continuations_total", ("pool", "begun")] == 1
    assert found["millrace_in_flight", ()] == 0
    assert found["millrace_queue_depth", ()] == 0
    fed = {name for name in names if any(sample.startswith(name) for sample, _ in found)}
    assert names - fed == UNSEEN
    moved = {
        name for name in names if any(value for (sample, _), value in found.items() if sample.startswith(name))
    }
    assert names - moved - LEVELS == UNFED | UNSEEN
