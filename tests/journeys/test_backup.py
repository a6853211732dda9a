"""A data directory is backed up under a running gateway, lost, and restored; and what `deploy/` has is understood."""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import openai
import pytest

from tests.crowds import FREE
from tests.fakes.counting_provider import counting_provider
from tests.gateways import PATIENCE_S, Gateway, complete_command, running_gateway, until

DEPLOY = Path(__file__).parents[2] / "deploy"
HELLO = [{"role": "user", "content": "Hello"}]


def ask(gateway: Gateway, key: str) -> str | None:
    """The request's id; None until the gateway has found its backend."""
    with contextlib.suppress(openai.NotFoundError, openai.InternalServerError):
        answer = gateway.openai(key).chat.completions.with_raw_response.create(
            model=FREE,
            messages=HELLO,  # type: ignore[arg-type]
            max_tokens=4,
        )
        return str(answer.headers["x-request-id"])
    return None


def back_up(data: Path, kept: Path) -> Path:
    done = subprocess.run(
        [str(DEPLOY / "backup.sh"), str(data), str(kept)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip())


def proven(gateway: Gateway) -> str | None:
    """The head, once every event is in a block."""
    # Asked first, for it is cheap, and a command is not.
    if "millrace_ledger_unproven_events 0.0" not in gateway.http().get("/metrics").text:
        return None
    told = json.loads(gateway.cli("ledger", "verify", "--json"))
    is_whole = told["sound"] and told["checkpoint"] and not told["tail_events"]
    return f"{told['checkpoint']['n']}:{told['checkpoint']['hash']}" if is_whole else None


def test_a_lost_data_folder_is_restored_as_it_was(tmp_path: Path) -> None:
    with counting_provider() as provider:
        backend = {"name": "desk", "base_url": provider.base_url, "kind": "openai", "models": [FREE]}
        lose_and_restore(tmp_path / "data", tmp_path / "kept", {"POOL__BACKENDS": json.dumps([backend])})


def lose_and_restore(data: Path, kept: Path, settings: dict[str, str]) -> None:
    with running_gateway(data, model=None, settings=settings) as gateway:
        key = gateway.new_key("laptop", "pool")
        asked = until(lambda: ask(gateway, key))
        gateway.record(asked)
        head = until(lambda: proven(gateway))
        saved = back_up(data, kept)
        gateway.process.kill()
    assert saved.stat().st_mode & 0o077 == 0, "it holds secrets"
    shutil.rmtree(data)
    with tarfile.open(saved) as archive:
        note = archive.extractfile("./ledger.checkpoint")
        assert note
        assert note.read().decode().strip() == head

    data.mkdir(mode=0o700)
    subprocess.run(["tar", "-xf", str(saved), "-C", str(data)], check=True, timeout=PATIENCE_S)
    verified = complete_command("ledger", "verify", "--known", head, "--data-dir", str(data))
    assert verified.returncode == 0, verified.stdout + verified.stderr
    with running_gateway(data, model=None, settings=settings) as again:
        assert again.record(asked)
        again.record(until(lambda: ask(again, key)))
        assert json.loads(again.cli("ledger", "health", "--json")) == [], "no rule is broken"


def test_what_is_no_data_folder_is_not_backed_up(tmp_path: Path) -> None:
    done = subprocess.run(
        [str(DEPLOY / "backup.sh"), str(tmp_path), str(tmp_path / "kept")],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 1
    assert "no data directory" in done.stderr
    assert not (tmp_path / "kept").exists()


def test_old_backups_go_and_others_stay(tmp_path: Path) -> None:
    data, kept = tmp_path / "data", tmp_path / "kept"
    data.mkdir()
    kept.mkdir()
    (data / "secret").write_text("s")
    old, foreign = kept / "millrace-20200101T000000Z.tar", kept / "photos.tar"
    long_ago_s = time.time() - 40 * 86_400
    for file in (old, foreign):
        file.touch()
        os.utime(file, (long_ago_s, long_ago_s))
    made = back_up(data, kept)
    assert sorted(kept.iterdir()) == sorted([made, foreign])


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_understands_the_units(tmp_path: Path) -> None:
    program = Path(sys.executable).with_name("millrace")
    for unit in (DEPLOY / "systemd").iterdir():
        text = unit.read_text().replace("/opt/millrace/.venv/bin/millrace", str(program))
        (tmp_path / unit.name).write_text(text.replace("/opt/millrace/deploy", str(DEPLOY)))
        assert re.search(r"ExecStart=|OnCalendar=", text)
    units = sorted(str(path) for path in tmp_path.iterdir())
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *units],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    ours = [line for line in done.stderr.splitlines() if "millrace" in line]
    assert (done.returncode, ours) == (0, []), done.stderr
