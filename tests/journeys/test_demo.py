"""`make demo` ended from outside: whoever ends it finds nothing of it afterwards."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.gateways import PATIENCE_S


@pytest.mark.parametrize(
    ("number", "last_words", "processes"),
    [
        # The gateway, two agents, two stages, one head.
        pytest.param(signal.SIGTERM, "Ctrl-C ends the demo", 6, id="while it serves"),
        pytest.param(signal.SIGHUP, "starting a gateway", 0, id="while it starts"),
    ],
)
def test_a_signal_leaves_nothing_behind(
    tmp_path: Path, number: signal.Signals, last_words: str, processes: int
) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "demo"],
        stdout=subprocess.PIPE,
        env=os.environ | {"TMPDIR": str(tmp_path)},
        start_new_session=True,
        text=True,
    ) as demo:
        assert demo.stdout
        assert any(last_words in line for line in demo.stdout)
        family = psutil.Process(demo.pid).children(recursive=True)
        assert len(family) >= processes
        demo.send_signal(number)
        demo.send_signal(number)  # As `timeout` does to a whole group.
        demo.communicate(timeout=2 * PATIENCE_S)
    _, alive = psutil.wait_procs(family, PATIENCE_S)
    for process in alive:
        process.kill()
    assert not alive
    assert demo.returncode == 128 + number
    assert list(tmp_path.glob("millrace-demo-*")) == []
