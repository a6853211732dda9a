"""Counting aside: alike, and whatever a tokenizer does to the process that counts by it, its owner goes on."""

import hashlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from accounting.errors import TextNotCounted
from accounting.metering.delivered import SEGMENT_CHARS, Delivered
from accounting.metering.tokenizers import Pinned, load_counter
from market.errors import CountingUnavailable, TokenizerRefused
from market.protocol.counting.token_count import Counting
from market.token_counting import process as running
from market.token_counting import sandboxed_tokenizers as module
from market.token_counting.frames import CountingLimits
from market.token_counting.process import CountingProcess
from market.token_counting.sandboxed_tokenizers import SandboxedTokenizers
from tests.accounting.tokenizer import make_tokenizer
from tests.market.token_counting.strangers import aborting, kept, panicking, slow

LONG = "the mill grinds é\n" * (SEGMENT_CHARS // 6)
Opened = Callable[..., SandboxedTokenizers]


@pytest.fixture
def opened() -> Iterator[Opened]:
    made: list[SandboxedTokenizers] = []

    def opening(reply_s: float = 60.0, **limits: float) -> SandboxedTokenizers:
        made.append(SandboxedTokenizers(CountingLimits(**limits), reply_s))  # type: ignore[arg-type]
        return made[-1]

    yield opening
    for each in made:
        each.close()


@pytest.fixture
def honest(tmp_path: Path) -> Pinned:
    return kept(tmp_path, make_tokenizer(tmp_path).path.read_bytes())


def test_it_counts_as_its_owner_would_whichever_side_ends_it(opened: Opened, honest: Pinned) -> None:
    sandbox, here = opened(), Counting(load_counter(honest))
    there = Counting(sandbox.counter(honest))
    answers = [Delivered(LONG, "because\ud83c"), Delivered("", "the mill")]
    prompt = {"messages": [{"role": "user", "content": "mill"}] * 5_000}
    assert here.delivered(answers) == there.delivered(answers) == there.remembering().delivered(answers)
    assert here.prompt_tokens(prompt) == there.prompt_tokens(prompt)
    # The process is killed: the next one does as well, and no tokenizer is blamed.
    assert sandbox.pid
    os.kill(sandbox.pid, signal.SIGKILL)
    for _ in range(2):
        try:
            assert there.delivered(answers) == here.delivered(answers)
        except CountingUnavailable:
            continue
    sandbox.check(honest.sha256)


def test_a_text_that_grows_is_not_counted_all_again(
    opened: Opened, honest: Pinned, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox, sizes = opened(), []

    def counted(self: SandboxedTokenizers, pinned: Pinned, segments: list[str]) -> list[int]:
        sizes.append(sum(map(len, segments)))
        return count(self, pinned, segments)

    count = SandboxedTokenizers.count
    monkeypatch.setattr(module.SandboxedTokenizers, "count", counted)
    growing = Counting(sandbox.counter(honest)).remembering()
    for chars in (SEGMENT_CHARS, SEGMENT_CHARS + 10, 2 * SEGMENT_CHARS + 30):
        growing.text_tokens(LONG[:chars])
    assert sizes == [SEGMENT_CHARS, 10, SEGMENT_CHARS + 30]


def test_what_takes_too_long_is_asked_twice_and_never_again(
    opened: Opened, tmp_path: Path, honest: Pinned
) -> None:
    """The kernel ends the process in the middle of the library's work, which nothing else could interrupt."""
    sandbox = opened(count_cpu_s=0.01)
    counter = sandbox.counter(honest)
    assert counter.count(["mill"]) > 0
    with pytest.raises(TextNotCounted, match="takes too long"):
        counter.count(["\u00e9\u4e00 a" * (SEGMENT_CHARS // 4)])
    with pytest.raises(TokenizerRefused):
        sandbox.check(honest.sha256)
    # By the common rule if no tokenizer can count: four bytes a token.
    answers = [Delivered("the mill")]
    assert Counting(counter).delivered(answers) == Counting(None).delivered(answers)
    other = kept(tmp_path, make_tokenizer(tmp_path).path.read_bytes() + b"\n")
    assert sandbox.counter(other).count(["mill"]) > 0


@pytest.mark.parametrize(
    ("file", "why"), [(aborting, "with status -6"), (slow, "takes too long"), (panicking, "cannot be read")]
)
def test_what_no_check_has_found_does_no_harm_either(
    opened: Opened, tmp_path: Path, honest: Pinned, file: Callable[[Path], bytes], why: str
) -> None:
    """The library aborts, panics and keeps at it for real, in a process that does not look at files."""
    sandbox, content = opened(count_cpu_s=0.3), file(tmp_path)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(running, "_MODULE", "tests.market.token_counting.careless")
        with pytest.raises(TextNotCounted, match=why):
            sandbox.counter(kept(tmp_path, content)).count(["a" * SEGMENT_CHARS])
    with pytest.raises(TokenizerRefused, match=why):
        sandbox.try_out(hashlib.sha256(content).hexdigest(), content)
    assert sandbox.counter(honest).count(["mill"]) > 0


def test_files_are_tried_out_in_a_process_of_their_own(opened: Opened, tmp_path: Path) -> None:
    sandbox = opened()
    for content in (aborting(tmp_path), slow(tmp_path), b"{}", b'{"model":{"type":"BPE","merges":7}}'):
        sha256 = hashlib.sha256(content).hexdigest()
        with pytest.raises(TokenizerRefused):
            sandbox.try_out(sha256, content)
        with pytest.raises(TokenizerRefused):
            sandbox.check(sha256)
    assert sandbox.pid is None
    good = make_tokenizer(tmp_path).path.read_bytes()
    pinned = kept(tmp_path, good)
    sandbox.try_out(pinned.sha256, good)
    tried = sandbox.pid
    assert sandbox.counter(pinned).count(["mill"]) > 0
    assert sandbox.pid == tried is not None


def test_what_needs_more_memory_than_there_is_ends_alone(opened: Opened, tmp_path: Path) -> None:
    vocabulary = ",".join(f'"w{number}":{number}' for number in range(300_000))
    content = b'{"model":{"type":"WordLevel","unk_token":"w1","vocab":{%s}}}' % vocabulary.encode()
    sha256 = hashlib.sha256(content).hexdigest()
    opened().try_out(sha256, content)
    with pytest.raises(TokenizerRefused):
        opened(memory_bytes=100 * 2**20).try_out(sha256, content)


def test_a_process_that_hangs_is_ended_and_no_tokenizer_is_blamed(opened: Opened, honest: Pinned) -> None:
    sandbox = opened(reply_s=0.5)
    counter = sandbox.counter(honest)
    while not counter_counts(counter.count):
        pass
    pid = sandbox.pid
    assert pid
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(CountingUnavailable):
        counter.count(["mill"])
    assert sandbox.pid is None
    sandbox.check(honest.sha256)


def counter_counts(count: Callable[[list[str]], int]) -> bool:
    """Whether the process has come up in time."""
    try:
        return count(["mill"]) > 0
    except CountingUnavailable:
        return False


def test_an_idle_process_ends_by_itself_and_is_started_when_needed(opened: Opened, honest: Pinned) -> None:
    sandbox = opened(idle_s=0.1)
    counter = sandbox.counter(honest)
    tokens = counter.count(["the mill"])
    until_s = time.monotonic() + 60
    while sandbox.pid is not None and time.monotonic() < until_s:
        time.sleep(0.05)
    assert sandbox.pid is None
    assert counter.count(["the mill"]) == tokens


def test_it_ends_with_its_owner_and_closing_waits_for_no_count(opened: Opened, honest: Pinned) -> None:
    process = CountingProcess(CountingLimits())
    assert process._process.stdin
    process._process.stdin.close()
    assert process._process.wait(60) == 0
    process.end()
    sandbox = opened()
    counter = sandbox.counter(honest)
    counter.count(["mill"])
    assert sandbox.pid
    os.kill(sandbox.pid, signal.SIGSTOP)
    closing = threading.Timer(0.2, sandbox.close)
    closing.start()
    with pytest.raises(CountingUnavailable):
        counter.count(["mill"])
    closing.join()
    with pytest.raises(CountingUnavailable):
        counter.count(["mill"])
