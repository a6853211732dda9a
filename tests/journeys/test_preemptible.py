"""Preemptible requests on a real cluster with one slot: the next is served only once the last has left it."""

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from gateway.api.admin import HEADER
from runtime.data_folder import DataFolder
from tests.clusters import DEMO_MODEL
from tests.gateway.batches.working import begin, ended, jsonl
from tests.gateways import PATIENCE_S, Gateway, running_gateway, until

# Neither of the tokens that end an answer: it goes on for as long as it may.
ENDLESS = {"max_tokens": 900, "logit_bias": {"0": -100, "2": -100}, "seed": 1}
MODEL = DEMO_MODEL.name


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with running_gateway(
        tmp_path_factory.mktemp("preemptible_jobs"), nodes=1, settings={"CLUSTER__SLOTS": "1"}
    ) as running:
        yield running


@pytest.fixture(scope="module")
def key(gateway: Gateway) -> str:
    running = DataFolder(gateway.folder).read_running()
    assert running
    headers = {HEADER: running["admin_token"]}
    made = httpx.post(
        f"{gateway.root}/admin/preemptible-key", headers=headers, trust_env=False, timeout=PATIENCE_S
    )
    return str(made.raise_for_status().json()["key"])


class Job:
    """A preemptible request on a thread of its own; `has_begun` is set with its first event."""

    def __init__(self, gateway: Gateway, key: str, **fields: Any) -> None:
        self.has_begun = threading.Event()
        self.status = 0
        self.headers: dict[str, str] = {}
        self.events: list[dict[str, Any]] = []
        self._client = gateway.http(key)
        self._body = {"model": MODEL, "prompt": "A river", "stream": True} | ENDLESS | fields

    def talk(self) -> None:
        with self._client.stream("POST", "/v1/completions", json=self._body) as answer:
            self.status, self.headers = answer.status_code, dict(answer.headers)
            if answer.status_code != 200:
                self.events.append(json.loads(answer.read()))
                return
            for line in answer.iter_lines():
                if line.startswith("data: {"):
                    self.events.append(json.loads(line[6:]))
                    self.has_begun.set()

    @property
    def code(self) -> str | None:
        error = self.events[-1].get("error")
        return error["code"] if error else None


def test_the_owner_gets_the_only_slot(gateway: Gateway, key: str) -> None:
    client = gateway.http()
    spare = gateway.admin("/admin/idle")["models"][0]
    assert (spare["id"], spare["slots_free"], spare["slots"]) == (MODEL, 1, 1)
    assert len(spare["weights_sha256"]) == len(spare["tokenizer_sha256"]) == 64
    assert spare["tokenizer_path"].endswith("tokenizer.json")
    assert spare["context_tokens"] > 0
    with ThreadPoolExecutor(1) as pool:
        for _ in range(3):
            job = Job(gateway, key)
            talking = pool.submit(job.talk)
            assert job.has_begun.wait(PATIENCE_S)
            assert gateway.admin("/admin/idle")["preemptible_jobs"] == 1
            own = client.post("/v1/completions", json={"model": MODEL, "prompt": "A mill", "max_tokens": 4})
            assert own.status_code == 200, own.text
            talking.result(PATIENCE_S)
            assert (job.status, job.code) == (200, "preempted")
            assert len(job.events) < ENDLESS["max_tokens"]  # type: ignore[operator]
            row = gateway.record(job.headers["x-request-id"])
            assert (row["lane"], row["outcome"], row["error"]) == ("cluster", "interrupted", "preempted")
            assert 0 < row["completion_tokens"] < 900
    usage = {row["key_id"]: row for row in gateway.admin("/admin/keys")["keys"]}[row["key_id"]]
    assert (usage["prefix"], usage["is_preemptible"]) == (key[:10], True)


def test_a_batch_is_own_work_until_it_is_done(gateway: Gateway, key: str) -> None:
    client = gateway.openai()
    body = {"model": MODEL, "messages": [{"role": "user", "content": "What is a river?"}], **ENDLESS}
    line = {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": body}
    batch = begin(client, jsonl([line]))
    until(lambda: gateway.admin("/admin/idle")["own_batches"] or None)
    job = Job(gateway, key)
    job.talk()
    assert (job.status, job.code) == (503, "preemptible_not_now")
    client.batches.cancel(batch.id)
    ended(client, batch.id, 60)
    until(lambda: gateway.admin("/admin/idle")["queue_empty_s"] or None)
    later = Job(gateway, key, max_tokens=2)
    later.talk()
    assert (later.status, later.code) == (200, None)


def test_nobody_waits_for_preemptible_requests_when_the_gateway_stops(gateway: Gateway, key: str) -> None:
    job = Job(gateway, key)
    with ThreadPoolExecutor(1) as pool:
        talking = pool.submit(job.talk)
        assert job.has_begun.wait(PATIENCE_S)
        assert gateway.stop() == 0
        talking.result(PATIENCE_S)
    assert job.code == "preempted"
