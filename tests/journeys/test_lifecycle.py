"""Start and stop: signals drain and leave no process behind, and a gateway that cannot start says why."""

import os
import re
import signal
import sqlite3
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx
import psutil
import pytest

from tests.clusters import DEMO_MODEL
from tests.databases import Databases
from tests.gateways import (
    PATIENCE_S,
    ForkedCommand,
    Gateway,
    complete_command,
    reading,
    running_gateway,
    until,
)

MODEL = DEMO_MODEL.name
LONG = {
    "model": MODEL,
    "messages": [{"role": "user", "content": "Tell me a story."}],
    "max_tokens": 300,
    "ignore_eos": True,
    "temperature": 0,
    "stream": True,
}


def stream_until_the_end(gateway: Gateway, begun: threading.Event, lines: list[str]) -> None:
    with gateway.http().stream("POST", "/v1/chat/completions", json=LONG) as answer:
        for line in answer.iter_lines():
            lines.append(line)
            if len(lines) > 4:
                begun.set()


@pytest.mark.parametrize(
    ("number", "nodes"), [(signal.SIGTERM, 1), pytest.param(signal.SIGINT, 2, marks=pytest.mark.slow)]
)
def test_a_signal_drains_and_leaves_nothing_behind(tmp_path: Path, number: signal.Signals, nodes: int) -> None:
    with running_gateway(tmp_path, nodes=nodes, settings={"SERVER__DRAIN_S": "600"}) as gateway:
        family = gateway.processes()
        # The gateway, the process of the chat template, one head, an agent and a stage of each node.
        assert len(family) == 3 + 2 * nodes
        begun, lines = threading.Event(), list[str]()
        reader = threading.Thread(target=stream_until_the_end, args=(gateway, begun, lines))
        reader.start()
        assert begun.wait(PATIENCE_S)
        status = gateway.stop(number)
        reader.join(PATIENCE_S)
    assert status == 0
    assert lines[-2] == "data: [DONE]"
    assert sum("content" in line for line in lines) > 100
    _, alive = psutil.wait_procs(family, PATIENCE_S)
    assert not alive
    assert not (tmp_path / "running.json").exists()


@pytest.mark.slow
def test_a_second_signal_does_not_wait(tmp_path: Path) -> None:
    with running_gateway(tmp_path, nodes=1, settings={"SERVER__DRAIN_S": "600"}) as gateway:
        family = gateway.processes()
        begun, lines = threading.Event(), list[str]()
        slow = LONG | {"max_tokens": 900, "n": 32}
        request = gateway.http().build_request("POST", "/v1/chat/completions", json=slow)
        reader = threading.Thread(target=_read_some, args=(gateway, request, begun, lines))
        reader.start()
        assert begun.wait(PATIENCE_S)
        gateway.process.send_signal(signal.SIGINT)
        time.sleep(0.3)
        gateway.stop(signal.SIGINT)
        reader.join(PATIENCE_S)
    _, alive = psutil.wait_procs(family, PATIENCE_S)
    assert not alive
    assert "data: [DONE]" not in lines
    with closing(sqlite3.connect(tmp_path / "millrace.db")) as database:
        assert database.execute("SELECT outcome FROM usage").fetchall() == [("interrupted",)]


def _read_some(gateway: Gateway, request: httpx.Request, begun: threading.Event, lines: list[str]) -> None:
    try:
        answer = gateway.http().send(request, stream=True)
        for line in answer.iter_lines():
            lines.append(line)
            begun.set()
    except httpx.TransportError:
        begun.set()


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with running_gateway(tmp_path_factory.mktemp("bare"), model=None) as gateway:
        yield gateway


def test_the_first_line_is_the_contract(bare: Gateway) -> None:
    assert set(bare.facts) == {"base_url", "api_key", "console_url", "password_url", "pid"}
    shown = httpx.get(bare.facts["console_url"], follow_redirects=True, trust_env=False, timeout=PATIENCE_S)
    assert shown.status_code == 200
    choosing = httpx.get(bare.facts["password_url"], trust_env=False, timeout=PATIENCE_S)
    assert (choosing.status_code, "password" in choosing.text) == (200, True)


def test_what_the_first_start_prints_says_what_the_key_may_do(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MILLRACE_")}
    process = ForkedCommand(["up", "--port", "0", "--nodes", "0", "--data-dir", str(tmp_path)], environment)
    log: list[str] = []
    with process.stdout, reading(process, log):
        try:
            text = until(lambda: text if "more machines" in (text := "".join(log)) else None)
        finally:
            process.terminate()
            process.wait(PATIENCE_S)
    [console] = [line for line in text.splitlines() if line.startswith("console")]
    assert console.endswith("/console (read-only with this key)")
    assert re.search(
        r"^password +set one within an hour for admin access to the console: http", text, re.MULTILINE
    )


def test_two_gateways_do_not_share_a_folder(bare: Gateway) -> None:
    second = start_and_fail(bare.folder)
    assert second.returncode == 1
    assert f"pid {bare.process.pid}" in second.stderr


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--model", "/no/such/folder"], "neither a folder nor a Hugging Face ID"),
        (["--port", "99999"], "65535"),
        (["--nodes", "-1"], "--nodes"),
    ],
)
def test_what_cannot_start_says_why(tmp_path: Path, words: list[str], expected: str) -> None:
    failed = start_and_fail(tmp_path, *words)
    assert failed.returncode in (1, 2)
    assert expected in failed.stderr
    assert "Traceback" not in failed.stderr


def test_an_unknown_setting_is_refused_by_name(tmp_path: Path) -> None:
    failed = start_and_fail(tmp_path, environment={"MILLRACE_CLUSTR__NODES": "2"})
    assert failed.returncode == 2
    assert "MILLRACE_CLUSTR__NODES is not a setting; did you mean MILLRACE_CLUSTER__NODES?" in failed.stderr
    (tmp_path / "millrace.toml").write_text("[server]\nprot = 1\n")
    failed = start_and_fail(tmp_path)
    assert "server.prot: is not a setting" in failed.stderr


def test_a_taken_port_is_named(bare: Gateway, tmp_path: Path) -> None:
    port = bare.root.rpartition(":")[2]
    failed = start_and_fail(tmp_path, "--port", port)
    assert f"127.0.0.1:{port}" in failed.stderr


# Gateways on PostgreSQL answer and book in test_several_gateways; here it is the cluster's answer.
@pytest.mark.slow
def test_postgresql_holds_the_ledger_too(tmp_path: Path, databases: Databases) -> None:
    with (
        databases.database("postgresql", migrated=False) as dsn,
        running_gateway(tmp_path, nodes=1, settings={"DATABASE__DSN": dsn}) as gateway,
    ):
        raw = gateway.openai().chat.completions.with_raw_response.create(
            model=MODEL, messages=[{"role": "user", "content": "Hello"}], max_tokens=4
        )
        assert gateway.record(raw.headers["x-request-id"])["event_seq"] == 1
        assert not (tmp_path / "millrace.db").exists()


def start_and_fail(
    folder: Path, *words: str, environment: dict[str, str] | None = None
) -> "subprocess.CompletedProcess[str]":
    """Run `millrace up`, which has to end by itself."""
    return complete_command("up", "--data-dir", str(folder), *words, environment=environment)
