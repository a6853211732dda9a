"""The worker reaches for its providers and nothing else: no price map, telemetry, images or tokenizers."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]
NAMESPACE = ["unshare", "--map-root-user", "--net"]


def _namespaces_work() -> bool:
    if not (shutil.which("unshare") and shutil.which("ip") and Path("/proc/net/snmp6").exists()):
        return False
    return subprocess.run([*NAMESPACE, "ip", "link", "set", "lo", "up"], capture_output=True).returncode == 0


def _give_up(reason: str) -> None:
    """Where nobody looks at what was skipped, a wall that cannot be tested counts as fallen."""
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


def test_nothing_else_is_reached_for() -> None:
    if not _namespaces_work():
        _give_up("needs unprivileged network namespaces: unshare and ip")
    done = subprocess.run(
        [*NAMESPACE, sys.executable, "-m", "tests.gateway.lanes.cloud.offline"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert set(seen["statuses"]) == {200}
    if seen["by_us"] == 0:
        _give_up("this kernel does not count attempts without a route")
    assert seen["by_worker"] == 0
