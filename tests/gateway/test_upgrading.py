"""The process that brings tables up to date: nobody else's code in it, and no longer there than its gateway."""

import asyncio
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from gateway.database import revisions
from gateway.upgrade import upgrade_in_process
from runtime.database import open_engine
from runtime.interpreter import command_of

_HOSTILE = "from pathlib import Path\nPath(__file__).with_name('was-here').touch()\nraise SystemExit(3)\n"


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Nobody else may write: who migrates waits, for some seconds."""
    open_engine(f"sqlite:///{path}").connect().close()
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        holder.close()


def test_what_lies_in_the_working_folder_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("alembic.py", "sqlalchemy.py", "gateway.py"):
        (tmp_path / name).write_text(_HOSTILE)
    monkeypatch.chdir(tmp_path)
    asyncio.run(upgrade_in_process(f"sqlite:///{tmp_path}/ledger.db"))
    with sqlite3.connect(tmp_path / "ledger.db") as connection:
        assert connection.execute("SELECT version_num FROM alembic_version").fetchone() == (revisions()[-1],)
    assert not (tmp_path / "was-here").exists()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_it_ends_with_the_gateway_that_started_it(number: signal.Signals, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir(mode=0o700)
    command = [sys.executable, "-m", "gateway", "up", "--port", "0", "--data-dir", str(tmp_path / "data")]
    with (
        locked(tmp_path / "data" / "millrace.db"),
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as gateway,
    ):
        try:
            child = _child_of(gateway)
            gateway.send_signal(number)
            said = "".join(gateway.communicate(timeout=60))
            child.wait(60)
        finally:
            gateway.kill()
    assert gateway.returncode
    assert "Traceback" not in said
    assert "cannot be used" not in said
    with sqlite3.connect(tmp_path / "data" / "millrace.db") as connection:
        assert connection.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,)


@pytest.mark.parametrize("said", [b"", b'"sqlite:///'])
def test_who_is_told_nothing_ends_without_a_word(said: bytes) -> None:
    """Its gateway was gone before it had said what to migrate, or all of it."""
    child = subprocess.run(command_of("gateway.migration_process"), input=said, capture_output=True, timeout=60)
    assert (child.returncode, child.stdout, child.stderr) == (1, b"", b"")


def _child_of(gateway: "subprocess.Popen[str]") -> psutil.Process:
    until_s = time.monotonic() + 60
    while time.monotonic() < until_s and gateway.poll() is None:
        for child in psutil.Process(gateway.pid).children():
            if "gateway.migration_process" in child.cmdline():
                return child
        time.sleep(0.02)
    raise AssertionError("nobody migrates")
