"""The workers of pytest-xdist as forks of one process that has collected the tests.

Each worker would import all libraries, the product and the tests by itself: 12 s of CPU. A fork collects in 3 s.
"""

import json
import os
import subprocess
import threading
from pathlib import Path

import execnet.gateway_io
import pytest
from execnet.gateway_base import ExecModel, Popen2IO
from execnet.gateway_io import Popen2IOMaster

from tests import templates

_TEMPLATE = "workers"
_MODULE = "tests.forked_worker"


class _ForkedWorkerIO(Popen2IOMaster):
    """The pipes of a forked worker."""

    def __init__(self, execmodel: ExecModel) -> None:
        self.popen = templates.ForkedChild(
            _MODULE,
            environment={**os.environ},
            folder=Path.cwd(),
            streams={"stdin": subprocess.PIPE, "stdout": subprocess.PIPE},
        )
        stdin, stdout = os.fdopen(self.popen.pipes[0], "wb"), os.fdopen(self.popen.pipes[1], "rb")
        # Not Popen2IOMaster's, which would start a process.
        Popen2IO.__init__(self, stdin, stdout, execmodel)


def fork_workers(config: pytest.Config) -> None:
    """Let a template collect the tests of this run, and start all local workers from it."""
    is_whole_run = config.args_source == pytest.Config.ArgsSource.TESTPATHS
    others = [name for name in templates.TEMPLATES if name != _TEMPLATE] if is_whole_run else []
    # Collection keeps one core busy. A whole run needs all other templates: they start beside it.
    threads = [threading.Thread(target=templates.begin, args=[name]) for name in others]
    for thread in threads:
        thread.start()
    paths = [str(config.invocation_params.dir / each) for each in config.args]
    templates.begin(_TEMPLATE, json.dumps({"paths": paths, "is_whole_run": is_whole_run}))
    for thread in threads:
        thread.join()
    create_really = execnet.gateway_io.create_io

    def create_io(spec: execnet.XSpec, execmodel: ExecModel) -> Popen2IOMaster:
        is_plain = spec.popen and not spec.python and not spec.via
        return _ForkedWorkerIO(execmodel) if is_plain else create_really(spec, execmodel)

    execnet.gateway_io.create_io = create_io
