"""Cloud keys: read from one private file by the worker alone, and seen nowhere else."""

import os
import subprocess
from pathlib import Path

import psutil
import pytest

from gateway.lanes.cloud.worker.keys import KeysFile, KeyUnavailable
from tests.fakes import anthropic_provider, openai_provider
from tests.gateway.lanes.cloud.running import RunningWorker, error_of

KEYS = (openai_provider.KEY, anthropic_provider.KEY)


@pytest.fixture
def keys(tmp_path: Path) -> KeysFile:
    path = tmp_path / "keys"
    path.write_text("# ours\n\nFIRST=one-secret\nexport SECOND = 'two secret'\nTHIRD=a=b#c\nEMPTY=\n")
    path.chmod(0o600)
    return KeysFile(path)


def test_lines_are_read_as_written(keys: KeysFile) -> None:
    assert keys.value_of("FIRST") == "one-secret"
    assert keys.value_of("SECOND") == "two secret"
    assert keys.value_of("THIRD") == "a=b#c"


def test_a_changed_file_is_read_again(keys: KeysFile) -> None:
    assert keys.value_of("FIRST") == "one-secret"
    keys.path.write_text("FIRST=another secret altogether\n")
    assert keys.value_of("FIRST") == "another secret altogether"


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o660, 0o666])
def test_a_file_that_others_can_read_is_refused_by_name(keys: KeysFile, mode: int) -> None:
    keys.path.chmod(mode)
    with pytest.raises(KeyUnavailable) as refused:
        keys.value_of("FIRST")
    assert "FIRST" in str(refused.value)
    assert str(keys.path) in str(refused.value)
    assert f"{mode:04o}" in str(refused.value)


def test_a_file_made_readable_later_is_refused_too(keys: KeysFile) -> None:
    keys.value_of("FIRST")
    keys.path.chmod(0o644)
    with pytest.raises(KeyUnavailable, match="0644"):
        keys.value_of("FIRST")


def test_stricter_modes_are_fine(keys: KeysFile) -> None:
    keys.path.chmod(0o400)
    assert keys.value_of("FIRST") == "one-secret"


def test_a_missing_key(keys: KeysFile) -> None:
    with pytest.raises(KeyUnavailable, match="FOURTH is not in"):
        keys.value_of("FOURTH")
    with pytest.raises(KeyUnavailable, match="EMPTY is not in"):
        keys.value_of("EMPTY")


def test_what_is_no_file_is_refused_without_waiting(tmp_path: Path) -> None:
    with pytest.raises(KeyUnavailable, match="No such file"):
        KeysFile(tmp_path / "absent").value_of("FIRST")
    with pytest.raises(KeyUnavailable, match="directory"):
        KeysFile(tmp_path).value_of("FIRST")
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(KeyUnavailable, match="not a regular file"):
        KeysFile(tmp_path / "pipe").value_of("FIRST")


def test_a_bad_line_is_named_by_its_number_and_not_shown(keys: KeysFile) -> None:
    keys.path.write_text("FIRST=one-secret\nsk-pasted-alone\n")
    with pytest.raises(KeyUnavailable) as refused:
        keys.value_of("FIRST")
    assert "Line 2" in str(refused.value)
    assert "sk-pasted" not in str(refused.value)


def test_the_log_alone_says_which_key_is_missing_and_where(worker: RunningWorker, keys_file: Path) -> None:
    response = worker.chat("gpt-without-key")
    assert response.status_code == 401
    error = error_of(response)
    assert (error["type"], error["code"]) == ("authentication_error", "provider_key_missing")
    assert "ABSENT_API_KEY" not in error["message"]
    assert str(keys_file) not in error["message"]
    assert f"The key ABSENT_API_KEY is not in {keys_file}." in worker.log()


def test_a_key_goes_by_its_providers_usual_name(worker: RunningWorker, keys_file: Path) -> None:
    response = worker.chat("mistral-without-key")
    assert response.status_code == 401
    assert f"The key MISTRAL_API_KEY is not in {keys_file}." in worker.log()


def test_no_key_shows_in_process_lists_environment_or_log(worker: RunningWorker) -> None:
    for model in (
        "gpt",
        "claude",
        "gpt.bad-key",
        "claude.bad-key",
        "gpt-nowhere",
        "gpt-with-password",
        "gpt.garbage",
    ):
        worker.chat(model)
    family = [
        worker.process.pid,
        *(child.pid for child in psutil.Process(worker.process.pid).children(recursive=True)),
    ]
    listing = ["ps", "-ww", "-o", "pid,args", "-p", ",".join(map(str, family))]
    processes = subprocess.run(listing, capture_output=True, text=True, check=True).stdout
    proc = Path(f"/proc/{worker.process.pid}")
    seen = processes + worker.log()
    if proc.exists():
        seen += (proc / "environ").read_text() + (proc / "cmdline").read_text()
    assert "gateway.lanes.cloud.worker" in processes
    assert "refused" in worker.log()
    for private in (*KEYS, "hunter2", "one two three four", "http://127"):
        assert private not in seen


def test_the_socket_is_its_owners_alone(worker: RunningWorker) -> None:
    assert worker.socket_path.stat().st_mode & 0o077 == 0
    assert worker.socket_path.parent.stat().st_mode & 0o077 == 0
