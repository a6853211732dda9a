"""A gateway that has the cluster is restarted under load: another gateway holds its requests meanwhile."""

import json
import signal
import threading
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from tests.clusters import DEMO_MODEL
from tests.gateways import Gateway, running_gateway, until

CLIENTS = 6
ANSWERED = "answered"


class Crowd:
    """Clients that ask again and again, half of them for streams unless they want `whole` answers only."""

    def __init__(self, gateway: Gateway, *, whole: bool) -> None:
        self.results: Counter[str] = Counter()
        self._answered = [0] * CLIENTS
        self._ended = threading.Event()
        self._threads = [
            threading.Thread(target=self._ask_on, args=(gateway, number, not whole and number % 2 == 0))
            for number in range(CLIENTS)
        ]

    def __enter__(self) -> "Crowd":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def wait_for_two_more(self) -> None:
        """Answers for each client: the second one was asked for after the first had come."""
        before = list(self._answered)
        until(lambda: all(now >= was + 2 for now, was in zip(self._answered, before, strict=True)) or None, 180)

    def _ask_on(self, gateway: Gateway, number: int, is_stream: bool) -> None:
        with httpx.Client(trust_env=False, timeout=300) as client:
            while not self._ended.is_set():
                result = _ask(client, gateway, number, is_stream)
                self.results[result] += 1
                self._answered[number] += result == ANSWERED


def _ask(client: httpx.Client, gateway: Gateway, number: int, is_stream: bool) -> str:
    body = {
        "model": DEMO_MODEL.name,
        "messages": [{"role": "user", "content": f"Tell me of number {number}."}],
        "max_tokens": 20,
        "ignore_eos": True,
        "stream": is_stream,
    }
    headers = {"authorization": f"Bearer {gateway.api_key}"}
    answer = client.post(f"{gateway.base_url}/chat/completions", json=body, headers=headers)
    if answer.status_code == 200 and (not is_stream or answer.content.endswith(b"data: [DONE]\n\n")):
        return ANSWERED
    return f"{answer.status_code} {answer.text[-300:]}"


@pytest.mark.timeout(600)
@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGKILL, marks=pytest.mark.slow)])
def test_no_request_fails_at_the_other_gateway(tmp_path: Path, number: signal.Signals) -> None:
    """Streams that have begun end with a gateway that is killed; all else is held and asked for again."""
    has_cluster = tmp_path / "has-cluster"
    with ExitStack() as ends, ExitStack() as first:
        gateway = first.enter_context(running_gateway(has_cluster, nodes=1))
        port = urlsplit(gateway.base_url).port
        assert port
        entry = {"name": "cluster", "base_url": gateway.base_url, "api_key": gateway.api_key}
        settings = {"POOL__BACKENDS": json.dumps([entry])}
        other = ends.enter_context(running_gateway(tmp_path / "other", model=None, settings=settings))
        with Crowd(other, whole=number == signal.SIGKILL) as crowd:
            crowd.wait_for_two_more()
            gateway.stop(number)
            metrics = other.http()
            until(lambda: _waiting(metrics) == CLIENTS or None)
            first.close()
            ends.enter_context(running_gateway(has_cluster, nodes=1, port=port))
            crowd.wait_for_two_more()
    assert set(crowd.results) == {ANSWERED}, crowd.results


def _waiting(client: httpx.Client) -> float:
    lines = client.get("/metrics").text.splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith("millrace_queue_depth "))
