"""Which tests pytest-xdist gives to one process, and in which order: those that wait beside those that compute."""

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
OF_ONE_SERVER = (
    "tests/accounting/test_kill.py",
    "tests/accounting/test_leading.py",
    "tests/accounting/payments/test_killed.py",
    "tests/accounting/proofs/test_maker_killed.py",
)
"""Files whose processes are forks of one server, which takes 2 s of CPU to start; see tests/accounting/forks.py."""
WAITING = (
    "tests/clients",
    "tests/gateway/batches",
    "tests/gateway/lanes/cloud",
    "tests/journeys",
    "tests/gateway/requests",
    "tests/gateway/lanes",
    "tests/gateway/limits",
)
"""Folders whose tests mostly wait for other processes, in the order in which they begin.

Those that one process has as a whole take a minute: one that began late would still run alone at the end.
"""
_ENDS = 0.85
"""By this part of the run they have all begun, so that short tests fill its end."""


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
    if path in OF_ONE_SERVER:
        return "tests/accounting/forks"
    return path


def mix_waiting_files(items: list[pytest.Item]) -> None:
    """Sort tests so that files which wait run beside files which compute. Tests of one file keep their order."""
    groups = dict.fromkeys(group_of(item.nodeid.split("::", 1)[0]) for item in items)
    waiting = sorted((each for each in groups if _rank(each) < len(WAITING)), key=_rank)
    computing = [each for each in groups if _rank(each) == len(WAITING)]
    begin = {each: _ENDS * at / len(waiting) for at, each in enumerate(waiting)}
    begin |= {each: at / len(computing) for at, each in enumerate(computing)}
    items.sort(key=lambda item: begin[group_of(item.nodeid.split("::", 1)[0])])


def _rank(group: str) -> int:
    ranks = (rank for rank, folder in enumerate(WAITING) if group == folder or group.startswith(f"{folder}/"))
    return next(ranks, len(WAITING))


def schedule(config: pytest.Config, log: Producer) -> SharedScheduling | None:
    """Return the scheduler of `--dist loadfile`; None leaves other kinds to pytest-xdist."""
    return SharedScheduling(config, log) if config.getoption("dist") == "loadfile" else None
