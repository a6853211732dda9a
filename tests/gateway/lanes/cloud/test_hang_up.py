"""A client that hangs up: the provider's connection is dropped at once, and the place is free again."""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest
from httpx import Response

from tests.fakes.provider_server import ProviderServer
from tests.gateway.lanes.cloud.conftest import LIMITS
from tests.gateway.lanes.cloud.running import MESSAGES, RunningWorker, client_of, error_of


@pytest.mark.parametrize("provider", ["gpt", "claude"])
def test_in_the_middle_of_a_stream(
    worker: RunningWorker, openai_fake: ProviderServer, anthropic_fake: ProviderServer, provider: str
) -> None:
    fake = openai_fake if provider == "gpt" else anthropic_fake
    with _nothing_noted(worker):
        with _stream(worker, f"{provider}.slow-chunks") as response:
            lines = response.iter_lines()
            assert "tick" in next(line for line in lines if "tick" in line)
        fake.wait_until("fake.slow-chunks", "cancelled")
        _wait_until_free(worker)


def test_in_the_middle_of_a_text_completion(worker: RunningWorker, openai_fake: ProviderServer) -> None:
    body = {"model": "gpt.slow-chunks", "prompt": "one", "stream": True}
    with _nothing_noted(worker):
        with (
            client_of(worker.socket_path) as client,
            client.stream("POST", "/v1/completions", json=body) as response,
        ):
            assert "tick" in next(line for line in response.iter_lines() if "tick" in line)
        assert openai_fake.wait_until("fake.slow-chunks", "cancelled").path == "/v1/completions"
        _wait_until_free(worker)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("provider", ["gpt", "claude"])
def test_before_the_first_byte(
    worker: RunningWorker,
    openai_fake: ProviderServer,
    anthropic_fake: ProviderServer,
    provider: str,
    stream: bool,
) -> None:
    fake = openai_fake if provider == "gpt" else anthropic_fake
    before = len(fake.requests)
    with _nothing_noted(worker), client_of(worker.socket_path) as client:
        request = client.build_request(
            "POST",
            "/v1/chat/completions",
            json={"model": f"{provider}.slow-first-byte", "messages": MESSAGES, "stream": stream},
            extensions={"timeout": {"connect": 10, "read": 1.5, "write": 10, "pool": 10}},
        )
        with pytest.raises(Exception, match="timed out"):
            client.send(request, stream=True)
        assert len(fake.requests) == before + 1
        fake.wait_until("fake.slow-first-byte", "cancelled")
        _wait_until_free(worker)


def test_when_every_place_is_taken_the_next_is_told_to_come_back(worker: RunningWorker) -> None:
    _wait_until_free(worker)
    with ExitStack() as held:
        answers = [_stream(worker, "gpt.slow-chunks") for _ in range(LIMITS.requests_in_flight_max)]
        bytes_of_each = [held.enter_context(answer).iter_bytes() for answer in answers]
        for chunks in bytes_of_each:
            assert next(chunks)
        refused = worker.chat("gpt")
        assert refused.status_code == 503
        assert refused.headers["retry-after"] == "1"
        assert error_of(refused)["code"] == "cloud_worker_busy"
    _wait_until_free(worker)
    assert worker.chat("gpt").status_code == 200


@contextmanager
def _nothing_noted(worker: RunningWorker) -> Iterator[None]:
    """It was the hang-up that ended the request, then: a bound that is reached stands in the log."""
    log = worker.log()
    yield
    assert worker.log() == log


@contextmanager
def _stream(worker: RunningWorker, model: str) -> Iterator[Response]:
    """A stream on a connection of its own, which closes with it."""
    body = {"model": model, "messages": MESSAGES, "stream": True}
    with (
        client_of(worker.socket_path) as client,
        client.stream("POST", "/v1/chat/completions", json=body) as response,
    ):
        yield response


def _wait_until_free(worker: RunningWorker, timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while worker.health().in_flight:
        assert time.monotonic() < deadline, "a request that nobody waits for still holds its place"
        time.sleep(0.01)
