"""Child processes: asked by their pipe, ended by it, and killed if they do not end."""

import asyncio
import signal
import sys
from asyncio.subprocess import PIPE, Process

import pytest

from runtime import children

pytestmark = pytest.mark.anyio
READS = "import sys; sys.stdin.read(); print('bye'); sys.exit(7)"
_start = children.start
STAYS = "import time; print(1, flush=True); time.sleep(600)"


async def running(code: str, stderr: int | None = None) -> Process:
    return await _start(sys.executable, "-I", "-c", code, stderr=stderr)


async def test_a_child_ends_when_its_pipe_is_closed() -> None:
    child = await running(READS)
    assert child.stdout
    assert await children.end(child, 60)
    assert (child.returncode, await child.stdout.read()) == (7, b"bye\n")
    assert await children.end(child, 0), "one that has ended already"


async def test_a_child_that_does_not_end_is_killed() -> None:
    child = await running(STAYS)
    assert child.stdout
    assert await child.stdout.readline() == b"1\n"
    assert not await children.end(child, 0)
    assert child.returncode == -signal.SIGKILL
    children.kill(child)


async def test_a_line_above_the_limit_hides_no_other() -> None:
    code = "import sys; sys.stderr.write('a\\n' + 'b' * 300_000 + '\\nc\\n' + 'd')"
    child = await running(code, stderr=PIPE)
    lines = [line async for line in children.lines_of(child.stderr)]
    assert (lines[0], lines[-2:]) == (b"a\n", [b"c\n", b"d"])
    assert max(map(len, lines)) < 2**17
    assert await children.reap(child, 60)


async def test_a_question_to_a_child_that_stays_silent_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[Process] = []

    async def start(*_: str) -> Process:
        begun.append(await running(STAYS))
        return begun[0]

    monkeypatch.setattr(children, "start", start)
    with pytest.raises(TimeoutError):
        await children.answer_of("a.module", b"question", 1.0)
    assert begun[0].returncode == -signal.SIGKILL


async def test_a_child_that_died_before_the_question_has_a_status(monkeypatch: pytest.MonkeyPatch) -> None:
    async def start(*_: str) -> Process:
        child = await running("import sys; print('why'); sys.exit(3)")
        await asyncio.wait_for(child.wait(), 60)
        return child

    monkeypatch.setattr(children, "start", start)
    assert await children.answer_of("a.module", b"question" * 100_000, 60) == (b"why", 3)
