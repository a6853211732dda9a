"""Three real gateway processes with one Redis, and what is left of a limit when one of them is killed."""

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gateway.limits.hungry_process import LIMIT
from tests.redis_server import RedisServer

ROOT = Path(__file__).parents[3]
LEASE_S = 1.5
# No process is so slow that it loses what it has leased.
LONG_LEASE_S = 60.0


class Hungry:
    def __init__(self, url: str, count: int, lease_s: float) -> None:
        arguments = [sys.executable, "-m", "tests.gateway.limits.hungry_process", url, str(count), str(lease_s)]
        self.process = subprocess.Popen(
            arguments, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    def read(self) -> str:
        assert self.process.stdout
        return self.process.stdout.readline().strip()

    def step(self) -> None:
        assert self.process.stdin
        self.process.stdin.write("\n")

    @property
    def served(self) -> int:
        return int(self.read().removeprefix("served "))

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def three(redis_server: RedisServer, request: pytest.FixtureRequest) -> Iterator[list[Hungry]]:
    processes = [Hungry(redis_server.url, 70, request.param) for _ in range(3)]
    yield processes
    for process in processes:
        process.end()


@pytest.mark.parametrize("three", [LONG_LEASE_S], indirect=True)
def test_three_processes_serve_exactly_the_limit(three: list[Hungry], redis_server: RedisServer) -> None:
    assert [process.read() for process in three] == ["ready"] * 3
    for process in three:
        process.step()
    assert sum(process.served for process in three) == LIMIT


@pytest.mark.parametrize("three", [LEASE_S], indirect=True)
def test_a_killed_process_leaves_what_it_did_not_serve(three: list[Hungry], redis_server: RedisServer) -> None:
    assert [process.read() for process in three] == ["ready"] * 3
    doomed, *others = three
    doomed.step()
    # In the middle of its crowd, or before it, or after.
    time.sleep(0.004)
    doomed.process.kill()
    doomed.process.wait()
    told = doomed.read()
    time.sleep(LEASE_S)
    for process in others:
        process.step()
    served = sum(process.served for process in others)
    assert served <= LIMIT - (int(told.removeprefix("served ")) if told else 0)
    with redis_server.client() as client:
        (day,) = client.keys("*requests:day*")
        used = int(client.hget(day, "u") or 0)
        leases = sum(int(value.split()[0]) for name, value in client.hgetall(day).items() if name[:2] == b"l:")
    assert used + leases <= LIMIT
