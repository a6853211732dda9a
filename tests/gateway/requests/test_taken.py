"""A part of a stream that makes no sense, or has no bounds, is given up, and nothing is kept of it."""

from collections.abc import Iterable

import pytest

from gateway.lanes.resume_records import ResumeRecord, write_record
from gateway.requests.resumable_stream import PartUseless, TakenStream
from runtime.sse import EVENT_BYTES_MAX
from tests.gateway.http.edges import DONE, said

pytestmark = pytest.mark.anyio


class Out:
    is_full = False

    def __init__(self) -> None:
        self.content = b""

    def write(self, data: bytes) -> None:
        self.content += data

    async def drain(self) -> None:
        pass


def record(chunks: int = 1, choice: int = 0) -> bytes:
    return write_record(ResumeRecord(choice=choice, token_ids=[7], characters=1, chunks=chunks))


MIB = said("a" * 2**20)
MANY = EVENT_BYTES_MAX // 2**20


@pytest.mark.parametrize(
    "events",
    [
        [record(chunks=10**9)],
        [record(chunks=MANY + 1), *[MIB] * MANY],
        [record(chunks=0), *[MIB] * MANY],
        [record(), record()],
        [record(choice=1)],
        [record(chunks=3), said("a"), DONE],
        [record(chunks=2), said("a"), b'data: {"error": {"message": "lost"}}\n\n'],
    ],
    ids=["chunks", "bytes of one", "bytes at the end", "two at once", "choice", "end within", "error within"],
)
async def test_a_part_that_makes_no_sense_is_given_up(events: Iterable[bytes]) -> None:
    out = Out()
    stream = TakenStream(out, 1)
    for event in events:
        stream.write(event)
    stream.write(record() + said("more"))
    assert stream.failure
    assert stream.is_full
    with pytest.raises(PartUseless):
        await stream.drain()
    assert out.content == b""
    stream.join()
    stream.write(record() + said("a"))
    assert out.content.count(b"data:") == out.content.count(b'"a"') == 1


def test_tokens_that_are_told_too_late_do_not_make_it_known() -> None:
    """What came before the first record would be told twice."""
    out = Out()
    stream = TakenStream(out, 1)
    stream.write(said("a") + record() + said("b"))
    assert out.content == said("a") + said("b")
    assert not stream.can_go_on


def test_an_end_in_the_middle_of_a_record_is_none() -> None:
    stream = TakenStream(Out(), 1)
    stream.write(record(chunks=2) + said("a"))
    stream.end()
    assert stream.failure
    assert stream.can_go_on
