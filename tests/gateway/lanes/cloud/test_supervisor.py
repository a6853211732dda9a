"""The supervisor: first use, crash, hang, replacement under load, and an end that leaves nothing behind."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from gateway.lanes.cloud.worker.program import CloudWorker
from gateway.lanes.cloud.worker.providers import CloudConfiguration
from runtime.workers.health import Health
from runtime.workers.supervisor import HealthPolicy, Lease, WorkerUnavailable
from runtime.workers.worker_process import _remove_abandoned
from tests.gateway.lanes.cloud.running import ANSWER, MESSAGES
from tests.templates import FOLDER

pytestmark = pytest.mark.anyio
QUICK = HealthPolicy(health_interval_s=0.1, health_s=0.5, health_misses_max=3, retire_s=20)
HEALTH = Health(pid=1, requests=5, in_flight=0, rss_bytes=200, age_s=10.0, cpu_s=3.0)


@asynccontextmanager
async def supervised(
    configuration: CloudConfiguration, health_policy: HealthPolicy = QUICK
) -> AsyncIterator[CloudWorker]:
    worker = CloudWorker(configuration, health_policy)
    try:
        yield worker
    finally:
        await worker.stop()


async def chat(worker: CloudWorker, model: str = "gpt", **fields: Any) -> tuple[Lease, httpx.Response]:
    """As a lane does it: a worker that is lost before its first byte is reported, the request tried once more."""
    async with worker.acquire() as lease:
        try:
            return lease, await post(lease, model, **fields)
        except (httpx.NetworkError, httpx.RemoteProtocolError):
            await worker.report_unreachable(lease)
    async with worker.acquire() as lease:
        return lease, await post(lease, model, **fields)


async def post(lease: Lease, model: str, **fields: Any) -> httpx.Response:
    transport = httpx.AsyncHTTPTransport(uds=str(lease.socket_path))
    async with httpx.AsyncClient(transport=transport, base_url="http://cloud", timeout=30) as client:
        body = {"model": model, "messages": MESSAGES, **fields}
        return await client.post("/v1/chat/completions", json=body)


async def until(condition: Callable[[], object], timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


@pytest.mark.slow
async def test_a_day_in_the_life(configuration: CloudConfiguration, monkeypatch: pytest.MonkeyPatch) -> None:
    """First use, a crash, a hang, wear, the end: one test, for a start costs seconds."""
    monkeypatch.delenv(FOLDER)
    health_policy = replace(QUICK, requests_max=6)
    async with supervised(configuration, health_policy) as worker:
        assert worker.socket_path is None
        firsts = await asyncio.gather(*(chat(worker) for _ in range(4)))
        assert {response.status_code for _, response in firsts} == {200}
        assert {lease.generation for lease, _ in firsts} == {1}
        _check_fenced_in(worker)

        await worker.report_unreachable(firsts[0][0])
        assert worker.generation == 1, "a worker that is well is not given up on hearsay"

        _, response = await chat(worker, stream=True)
        assert "[DONE]" in response.text

        os.kill(worker.pids[0], signal.SIGKILL)
        lease, response = await chat(worker)
        assert response.json()["choices"][0]["message"]["content"] == ANSWER
        assert lease.generation == 2

        os.kill(worker.pids[0], signal.SIGSTOP)
        await until(lambda: worker.generation == 3)
        assert (await chat(worker))[1].status_code == 200

        await _wear_out_under_load(worker)
        folder, pids = lease.socket_path.parent, worker.pids
    assert worker.pids == []
    assert not any(psutil.pid_exists(pid) for pid in pids)
    assert not folder.exists()
    with pytest.raises(WorkerUnavailable):
        await worker.start()


def _check_fenced_in(worker: CloudWorker) -> None:
    process = psutil.Process(worker.pids[0])
    socket_path = worker.socket_path
    assert socket_path is not None
    assert len(str(socket_path)) < 104
    assert socket_path.parent.stat().st_mode & 0o777 == 0o700
    assert os.getsid(process.pid) == process.pid
    environment = process.environ()
    assert environment["HOME"] == str(socket_path.parent)
    assert set(environment) <= {"PATH", "HOME", "TMPDIR", "LANG", "LC_ALL", "LC_CTYPE", "TZ"} | {
        "SSL_CERT_FILE",
        "SSL_CERT_DIR",
        "REQUESTS_CA_BUNDLE",
    }


async def _wear_out_under_load(worker: CloudWorker) -> None:
    """Old answers finish where they began, new ones go to a fresh worker, and no one waits for it."""
    old_pid = worker.pids[0]
    async with worker.acquire() as old:
        long_answer = asyncio.create_task(post(old, "gpt.slow-chunks", stream=True))
        generation = old.generation
        async with asyncio.timeout(60):
            while generation == old.generation:
                lease, response = await chat(worker)
                assert response.status_code == 200
                generation = lease.generation
                await asyncio.sleep(0.05)
        assert old_pid in worker.pids
        assert len(worker.pids) == 2
        # The bound on a whole answer ends this one: what counts is that the old worker was there to say so.
        assert "provider_timeout" in (await long_answer).text
        assert (await post(old, "gpt")).status_code == 200
    await until(lambda: worker.pids and old_pid not in worker.pids)


async def test_a_worker_that_does_not_come_up(
    configuration: CloudConfiguration, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(FOLDER)  # A fork would be up by then.
    children = psutil.Process().children()
    async with supervised(configuration, HealthPolicy(start_s=0.3, backoff_max_s=5)) as worker:
        with pytest.raises(WorkerUnavailable):
            await worker.start()
        await until(lambda: worker._resume_at is not None)
        generation = worker._generation
        with pytest.raises(WorkerUnavailable) as unavailable:
            await worker.start()
        assert worker._generation == generation, "it is told to come back instead of waiting for the next attempt"
        assert 0 < unavailable.value.retry_after_s <= 5
    assert psutil.Process().children() == children


async def test_a_worker_that_eats_memory_is_ended(configuration: CloudConfiguration) -> None:
    async with supervised(configuration, replace(QUICK, rss_bytes_kill=1)) as worker:
        await worker.start()
        pid = worker.pids[0]
        await until(lambda: not psutil.pid_exists(pid))


async def test_stopping_while_it_starts_leaves_nothing(
    configuration: CloudConfiguration, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(FOLDER)
    children = psutil.Process().children()
    worker = CloudWorker(configuration)
    starting = asyncio.create_task(worker.start())
    await until(lambda: len(psutil.Process().children()) > len(children))
    await worker.stop()
    with pytest.raises(WorkerUnavailable):
        await starting
    assert psutil.Process().children() == children
    await worker.stop()


async def test_a_supervisor_that_was_never_used_stops_at_once(configuration: CloudConfiguration) -> None:
    await CloudWorker(configuration).stop()


def test_folders_of_the_dead_are_removed(tmp_path: Path) -> None:
    dead, young, served = (tmp_path / f"millrace-cloud-{name}" for name in ("dead", "young", "served"))
    for folder in (dead, young, served):
        folder.mkdir()
    with socket.socket(socket.AF_UNIX) as gone, socket.socket(socket.AF_UNIX) as listening:
        gone.bind(str(dead / "s"))
        listening.bind(str(served / "s"))
        listening.listen()
        for folder in (dead, served):
            os.utime(folder, (0, 0))
        gone.close()
        _remove_abandoned(tmp_path, "millrace-cloud-")
    assert not dead.exists()
    assert young.exists()
    assert served.exists()


def test_when_a_worker_is_worn_out() -> None:
    assert HealthPolicy().worn_out(HEALTH) is None
    assert HealthPolicy(requests_max=5).worn_out(HEALTH) == "requests"
    assert HealthPolicy(age_max_s=10).worn_out(HEALTH) == "age"
    assert HealthPolicy(rss_bytes_max=200).worn_out(HEALTH) == "memory"


def test_backing_off_is_bounded() -> None:
    pauses = [HealthPolicy(backoff_max_s=10).backoff_s(failures) for failures in range(1, 9)]
    assert pauses == [0, 1, 2, 4, 8, 10, 10, 10]


def test_the_gateway_side_does_not_import_litellm() -> None:
    code = "import sys, runtime.workers.supervisor; print('litellm' in sys.modules, 'httpx' in sys.modules)"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said.split() == ["False", "False"]
