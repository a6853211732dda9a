"""The command and environment of child processes, which must run Millrace's own code.

`python -m` looks in the working folder first. An `alembic.py` there would be run in place of the real one.
"""

import os
import sys
import sysconfig
from pathlib import Path

_ROOT = Path(__file__).parent.parent


def command_of(module: str, *arguments: str) -> list[str]:
    """Return the command that runs one of our modules as a child, in `environment()`."""
    return [sys.executable, "-P", "-m", module, *arguments]


def environment() -> dict[str, str]:
    """Return this process's environment, with the path to our packages if they run from a checkout."""
    if str(_ROOT) in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")):
        return dict(os.environ)
    known = os.environ.get("PYTHONPATH")
    return os.environ | {"PYTHONPATH": f"{_ROOT}{os.pathsep}{known}" if known else str(_ROOT)}
