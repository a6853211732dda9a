"""The worker's process: what it wants to start, and how it ends."""

import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import httpx
import msgspec
import psutil
import pytest

from gateway.lanes.cloud.worker.providers import CloudConfiguration
from tests.fakes.provider_server import ProviderServer
from tests.gateway.lanes.cloud.conftest import LIMITS
from tests.gateway.lanes.cloud.running import MESSAGES, RunningWorker, client_of, running_worker, start_process


@pytest.fixture
def own_worker(configuration: CloudConfiguration) -> Iterator[RunningWorker]:
    """A worker that a test ends."""
    with running_worker(configuration, from_template=True) as running:
        yield running


@pytest.mark.parametrize(
    "orders",
    [b"", b"{}\n", b"not json\n", b'{"socket_path": "/tmp/x", "configuration": {"models": {}, "keys": "sk-1"}}\n'],
)
def test_bad_orders_end_it_at_once_and_are_not_repeated(orders: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        process = start_process(folder, subprocess.PIPE)
        said, noted = process.communicate(orders, timeout=60)
        assert process.returncode == 2
        assert said == b""
        assert msgspec.json.decode(noted)["event"] == "bad_orders"
        assert b"sk-1" not in noted


def test_its_memory_is_bounded(worker: RunningWorker) -> None:
    soft, hard = psutil.Process(worker.process.pid).rlimit(psutil.RLIMIT_AS)
    assert soft == hard == LIMITS.memory_bytes_max


def test_it_ends_when_the_gateway_is_gone(own_worker: RunningWorker, openai_fake: ProviderServer) -> None:
    with (
        client_of(own_worker.socket_path) as client,
        client.stream("POST", "/v1/chat/completions", json=_slow_chat()) as response,
    ):
        chunks = response.iter_bytes()
        next(chunks)
        assert own_worker.process.stdin is not None
        own_worker.process.stdin.close()
        assert own_worker.process.wait(60) == 0
    openai_fake.wait_until("fake.slow-chunks", "cancelled")


def test_sigterm_lets_answers_finish_but_not_forever(own_worker: RunningWorker) -> None:
    with ThreadPoolExecutor(2) as threads:
        short = threads.submit(_ask, own_worker.socket_path, "claude.few-chunks")
        endless = threads.submit(_ask, own_worker.socket_path, "gpt.slow-chunks")
        while not endless.done() and own_worker.health().in_flight < (1 if short.done() else 2):  # on their way
            time.sleep(0.005)
        own_worker.client.close()
        own_worker.process.send_signal(signal.SIGTERM)
        assert own_worker.process.wait(60) == 0
        assert short.result(60).endswith("data: [DONE]\n\n")
        assert "tick" in endless.result(60)
        assert "[DONE]" not in endless.result()


def _ask(socket_path: Path, model: str) -> str:
    """What came of a stream, even when it was cut off."""
    came = b""
    body = {"model": model, "messages": MESSAGES, "stream": True}
    with (
        client_of(socket_path) as client,
        client.stream("POST", "/v1/chat/completions", json=body) as response,
        suppress(httpx.RemoteProtocolError),
    ):
        for part in response.iter_bytes():
            came += part
    return came.decode()


def test_it_reads_no_dotenv_and_prints_nothing_else(worker: RunningWorker) -> None:
    worker.chat("gpt")
    worker.chat("claude", stream=True)
    lines = [msgspec.json.decode(line) for line in worker.log().splitlines()]
    assert {line["event"] for line in lines} <= {"refused", "no_key"}
    assert worker.born.requests == 0
    assert worker.born.pid == worker.process.pid
    assert worker.born.rss_bytes < 400 * 1024 * 1024
    assert not list(Path(worker.socket_path.parent).glob("*.json"))


def _slow_chat() -> dict[str, object]:
    return {"model": "gpt.slow-chunks", "messages": MESSAGES, "stream": True}
