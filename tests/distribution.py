"""Which tests pytest-xdist gives to one process, and in which order: the longest first, to end together."""

from pathlib import PurePosixPath

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

TOGETHER = ("tests/gateway/lanes/cloud", "tests/gateway/batches", "tests/clients")
"""Folders whose files share a gateway or a worker that takes seconds of CPU to start."""
SHARED_CLUSTER = ("test_bad_input", "test_openai_client")
"""Files of tests/journeys that share one gateway with two nodes."""
WITH_REFERENCE = (
    "tests/journeys/test_embeddings.py",
    "tests/cluster/test_compat.py",
    "tests/cluster/test_embedder.py",
    "tests/cluster/test_embeddings.py",
    "tests/cluster/test_families.py",
    "tests/cluster/test_gguf.py",
    "tests/cluster/test_steps.py",
    "tests/cluster/test_text.py",
    "tests/cluster/test_tokens.py",
)
"""Files that compare with models of transformers: a process needs 2 s of CPU to import them."""
LONGEST = (
    "tests/journeys",
    "tests/gateway/lanes",
    "tests/cluster",
    "tests/clients",
    "tests/gateway/batches",
    "tests/accounting",
    "tests/gateway",
)
"""Folders in the order in which they begin; all others follow."""


class SharedScheduling(LoadFileScheduling):  # type: ignore[misc]
    """Gives a file to one process, and so each group of files that share what is slow to start."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid.split("::", 1)[0])


def group_of(path: str) -> str:
    """Return the name of the group of tests that a file belongs to: for most the file itself."""
    for folder in TOGETHER:
        if path.startswith(f"{folder}/"):
            return folder
    if path.startswith("tests/journeys/") and PurePosixPath(path).stem in SHARED_CLUSTER:
        return "tests/journeys"
    if path in WITH_REFERENCE:
        return "models of transformers"
    return path


def put_longest_first(items: list[pytest.Item]) -> None:
    """Sort tests by their folder's place in LONGEST. Tests of one folder keep their order."""
    items.sort(key=lambda item: _rank(item.nodeid))


def _rank(nodeid: str) -> int:
    ranks = (rank for rank, folder in enumerate(LONGEST) if nodeid.startswith(f"{folder}/"))
    return next(ranks, len(LONGEST))


def schedule(config: pytest.Config, log: Producer) -> SharedScheduling | None:
    """Return the scheduler of `--dist loadfile`; None leaves other kinds to pytest-xdist."""
    return SharedScheduling(config, log) if config.getoption("dist") == "loadfile" else None
