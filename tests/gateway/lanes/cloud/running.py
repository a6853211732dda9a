"""A cloud worker started without the supervisor, so that tests see the process itself, and its clients."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Self

import httpx
import msgspec
import orjson

from gateway.lanes.cloud.worker.providers import CloudConfiguration, Orders
from runtime.workers.health import Health
from tests.templates import ForkedChild

STEP_S = 60.0
MESSAGES = [{"role": "user", "content": "one two three four"}]
PROMPT_TOKENS = 4
ANSWER = "The mill wheel turns all night."
ANSWER_TOKENS = 6
Json = dict[str, Any]


class ForkedProgram(ForkedChild):
    """A program of a template whose stdin and stdout are pipes of bytes."""

    def __init__(self, module: str, environment: dict[str, str], folder: Path, stderr: int) -> None:
        streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": stderr}
        super().__init__(module, environment=environment, folder=folder, streams=streams)
        self.stdin: IO[bytes] = os.fdopen(self.pipes[0], "wb")
        self.stdout: IO[bytes] = os.fdopen(self.pipes[1], "rb")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stdout.close()
        with suppress(BrokenPipeError):
            self.stdin.close()
        self.wait()


@dataclass
class RunningWorker:
    process: "subprocess.Popen[bytes] | ForkedProgram"
    client: httpx.Client
    socket_path: Path
    born: Health
    log_path: Path

    def chat(self, model: str, **fields: Any) -> httpx.Response:
        body = {"model": model, "messages": MESSAGES, **fields}
        return self.client.post("/v1/chat/completions", json=body)

    def completion(self, model: str, **fields: Any) -> httpx.Response:
        return self.client.post("/v1/completions", json={"model": model, "prompt": "one two three", **fields})

    def health(self) -> Health:
        return msgspec.json.decode(self.client.get("/healthz").content, type=Health)

    def log(self) -> str:
        return self.log_path.read_text()


def events_of(response: httpx.Response) -> list[Json]:
    """The events of a stream that ended well."""
    events = all_events_of(response)
    assert events.pop() == "[DONE]"
    return events


def all_events_of(response: httpx.Response) -> list[Any]:
    """The events of a stream, however it ended; the mark [DONE] stays a string."""
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "text/event-stream"
    events = [event.removeprefix("data: ") for event in response.text.split("\n\n") if event]
    return [event if event == "[DONE]" else orjson.loads(event) for event in events]


def error_of(response: httpx.Response) -> Json:
    """The error of an answer that came before the first byte, checked for OpenAI's shape."""
    return checked_error(response.json())


def checked_error(body: Json) -> Json:
    assert set(body) == {"error"}
    error: Json = body["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str)
    return error


@contextmanager
def running_worker(configuration: CloudConfiguration, *, from_template: bool = False) -> Iterator[RunningWorker]:
    """Ended by closing its stdin, as a dead gateway would.

    One `from_template` runs the same module as a fork, which has litellm imported.
    """
    with tempfile.TemporaryDirectory(prefix="cloud-") as folder:
        log_path = Path(folder) / "log"
        with log_path.open("wb") as log:
            process = (fork_process if from_template else start_process)(folder, log.fileno())
        with process:
            orders = Orders(str(Path(folder) / "s"), configuration)
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(msgspec.json.encode(orders) + b"\n")
            process.stdin.flush()
            line = process.stdout.readline()
            assert line, log_path.read_text()
            born = msgspec.json.decode(line, type=Health)
            with client_of(orders.socket_path) as client:
                yield RunningWorker(process, client, Path(orders.socket_path), born, log_path)
            process.stdin.close()
            assert process.wait(STEP_S) == 0


def start_process(folder: str, stderr: int) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-I", "-m", "gateway.lanes.cloud.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=stderr,
        env={"HOME": folder},
        cwd=folder,
    )


def fork_process(folder: str, stderr: int) -> ForkedProgram:
    return ForkedProgram("gateway.lanes.cloud.worker", {"HOME": folder}, Path(folder), stderr)


def client_of(socket_path: str | Path) -> httpx.Client:
    transport = httpx.HTTPTransport(uds=str(socket_path))
    return httpx.Client(transport=transport, base_url="http://cloud", timeout=STEP_S)
