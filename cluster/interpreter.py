"""Child processes run our own code: what lies in the folder that Millrace was started from is no part of it.

`python -m` looks in the working folder first, so that an `alembic.py` there would be run in place of the real one.
"""

import os
import sys
import sysconfig
from pathlib import Path

import cluster

_ROOT = Path(cluster.__file__).parent.parent


def command_of(module: str, *arguments: str) -> list[str]:
    """For a child that runs a module of ours, in `environment`."""
    return [sys.executable, "-P", "-m", module, *arguments]


def environment() -> dict[str, str]:
    """Ours, with the way to our packages where they are not installed but lie in a checkout."""
    if str(_ROOT) in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")):
        return dict(os.environ)
    known = os.environ.get("PYTHONPATH")
    return os.environ | {"PYTHONPATH": f"{_ROOT}{os.pathsep}{known}" if known else str(_ROOT)}
