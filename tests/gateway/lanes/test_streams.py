"""What passes of a stream and what is known of it afterwards, whatever pieces it comes in."""

import json
from itertools import pairwise
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from gateway.dialects.openai import read_request
from gateway.lanes.base import Call, Meter
from gateway.lanes.events import StreamReader
from gateway.lanes.tee import Kept, data_of
from runtime.sse import EventSplitter

ASKED = b'{"model": "m", "stream": true, "messages": [{"role": "user", "content": "Hi"}]}'
PIECES = st.sampled_from((b"data: ", b"data:", b"x", b"\n", b"\r", b"\n\n", b"\r\n\r\n", b": ping", b"[DONE]"))


def reader() -> StreamReader:
    return StreamReader(Call("req_1", "chat", read_request("chat", ASKED), ASKED))


def event(**fields: Any) -> bytes:
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


def said(text: str, finish: str | None = None) -> bytes:
    return event(choices=[{"index": 0, "delta": {"content": text}, "finish_reason": finish}])


def passed(read: StreamReader, stream: bytes, cuts: list[int]) -> bytes:
    places = [0, *sorted(cuts), len(stream)]
    return b"".join(read.feed(stream[begin:end]) for begin, end in pairwise(places)) + read.end()


def used(read: StreamReader) -> Meter:
    meter = Meter()
    read.fill(meter)
    return meter


BEFORE = said("One ") + said("two") + said("", "stop")
USAGE = event(choices=[], usage={"prompt_tokens": 7, "completion_tokens": 2})
END = b"data: [DONE]\n\n"


@given(st.lists(st.integers(0, len(BEFORE + USAGE + END))))
def test_usage_is_taken_out_and_all_else_passes(cuts: list[int]) -> None:
    read = reader()
    assert passed(read, BEFORE + USAGE + END, cuts) == BEFORE + END
    meter = used(read)
    assert (meter.prompt_tokens, meter.completion_tokens, meter.source) == (7, 2, "upstream")
    assert meter.is_complete


@given(
    st.lists(st.integers(0, len(BEFORE + END) * 2)),
    st.integers(0, len(BEFORE + END) * 2),
    st.sampled_from([b"\n", b"\r\n", b"\r"]),
)
def test_only_whole_events_pass_wherever_the_stream_is_lost(
    cuts: list[int], lost_at: int, line_end: bytes
) -> None:
    """Lines end as servers end them, and with LF behind the reader."""
    read = reader()
    stream = (BEFORE + END).replace(b"\n", line_end)
    lost = min(lost_at, len(stream))
    out = passed(read, stream[:lost], [min(cut, lost) for cut in cuts])
    assert (BEFORE + END).startswith(out)
    assert out.endswith(b"\n\n") or not out
    assert read.is_whole == (out == BEFORE + END)
    whole_events = (BEFORE + END)[: len(stream[:lost].replace(line_end, b"\n"))].count(b"\n\n")
    assert out.count(b"\n\n") >= whole_events


@given(st.lists(st.integers(0, len(BEFORE + END))))
def test_without_usage_events_with_text_are_counted(cuts: list[int]) -> None:
    read = reader()
    assert passed(read, BEFORE + END, cuts) == BEFORE + END
    assert (used(read).completion_tokens, used(read).source) == (2, "estimate")


def test_a_long_answer_is_counted_without_being_kept() -> None:
    read, events = reader(), 2_000
    for number in range(events):
        read.feed(said(f"word{number} "))
    assert isinstance(read._kept, Kept)
    assert read._kept.size_bytes <= 16 * 2**10
    assert used(read).completion_tokens == events


def test_of_an_endless_number_of_ends_no_more_are_kept_than_anybody_asks_for() -> None:
    read = reader()
    for number in range(1_000):
        read.feed(event(choices=[{"index": number, "delta": {}, "finish_reason": "stop"}]))
    read.feed(END)
    assert (len(used(read).finish_reasons), used(read).is_complete) == (128, True)


@given(st.lists(st.integers(0, 60)))
def test_a_first_event_that_is_an_error_refuses_however_it_is_cut(cuts: list[int]) -> None:
    error = event(error={"message": "the model is not loaded", "code": 503})
    read = reader()
    passed(read, error + END, cuts)
    assert read.refusal == {"message": "the model is not loaded", "code": 503}


@example([b"data: ", b"x", b"\r", b"\n\n"])
@example([b"\n", b"data: ", b"x", b"\n\n"])
@given(st.lists(PIECES))
def test_the_short_way_to_an_events_data_finds_what_the_long_one_does(pieces: list[bytes]) -> None:
    content, splitter = b"".join(pieces), EventSplitter()
    assert data_of(content) == [*splitter.feed(content), *splitter.end()]
