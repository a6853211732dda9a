"""The path of a request stays readable: limits that only go down."""

from pathlib import Path

import pytest

from bench.path import core, follow

pytestmark = pytest.mark.anyio

# A few more than `python -m bench path` counts, because what runs in the ledger's threads differs a little.
FILES_MAX = 125
CORE_FILES_MAX = 72
LINES_RUN_MAX = 4_600
STEP_FILES_MAX = 16


async def test_a_paid_stream_is_followed_in_few_files(tmp_path: Path) -> None:
    path = await follow(tmp_path)
    steps = {file.name for file in path if file.name.startswith("gateway/requests/")}
    modules = ("entry", "queue_slot", "opener", "sender", "settlement")
    assert steps > {f"gateway/requests/{module}.py" for module in modules}
    assert {"gateway/http/hot.py", "accounting/ledger/poster.py"} < {file.name for file in path}
    assert len(path) <= FILES_MAX
    assert len(core(path)) <= CORE_FILES_MAX
    assert len(steps) <= STEP_FILES_MAX
    assert sum(file.lines_run for file in path) <= LINES_RUN_MAX
