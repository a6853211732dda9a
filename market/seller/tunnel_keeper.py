"""Run a program that must not outlive its parent: it is told to end when our standard input closes.

    python -I tunnel_keeper.py GRACE_S PROGRAM ARGUMENT ...

The kernel closes a pipe however its other end died; not every system has such a mechanism for processes. Started
by its path with the standard library only, this costs a few megabytes for as long as the tunnel lives.
"""

import ctypes
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress

_PR_SET_PDEATHSIG = 1


def main() -> int:
    grace_s, command = float(sys.argv[1]), sys.argv[2:]
    # Start before any thread: code between fork and exec must find no lock taken.
    child = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=_die_with_parent if sys.platform == "linux" else None,
    )
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: threading.Thread(target=_end, args=(child, grace_s)).start())
    threading.Thread(target=_end_with_owner, args=(child, grace_s), daemon=True).start()
    status = child.wait()
    # Kill programs that it may have started itself.
    _signal(child, signal.SIGKILL)
    return status if status >= 0 else 128 - status


def _die_with_parent() -> None:
    """Kill the child if this process is killed, on kernels that can."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _end_with_owner(child: "subprocess.Popen[bytes]", grace_s: float) -> None:
    with suppress(OSError):
        while os.read(0, 4096):
            pass
    _end(child, grace_s)


def _end(child: "subprocess.Popen[bytes]", grace_s: float) -> None:
    _signal(child, signal.SIGTERM)
    try:
        child.wait(grace_s)
    except subprocess.TimeoutExpired:
        _signal(child, signal.SIGKILL)


def _signal(child: "subprocess.Popen[bytes]", number: signal.Signals) -> None:
    """Signal the whole process group, which has the child's pid."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, number)


if __name__ == "__main__":
    sys.exit(main())
