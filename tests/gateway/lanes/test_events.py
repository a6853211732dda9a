"""Event streams as servers write them, cut anywhere."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime import sse as events
from runtime.sse import EventSplitter

STREAM = (
    b': ping\r\n\r\ndata:{"a":1}\r\n\r\nevent: x\ndata: {"b": 2}\n\n'
    b":\ndata: one\ndata: two\n\nid: 7\n\ndata: [DONE]\r\n"
)
EVENTS = [b'{"a":1}', b'{"b": 2}', b"one\ntwo", b"[DONE]"]


@given(st.lists(st.integers(0, len(STREAM))))
def test_events_do_not_depend_on_the_pieces_they_come_in(cuts: list[int]) -> None:
    places = [0, *sorted(cuts), len(STREAM)]
    splitter = EventSplitter()
    found = [data for begin, end in pairwise(places) for data in splitter.feed(STREAM[begin:end])]
    assert found + splitter.end() == EVENTS


def test_a_line_without_end_is_dropped_and_the_next_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "EVENT_BYTES_MAX", 100)
    splitter = EventSplitter()
    assert not any(splitter.feed(b"data: " + b"x" * 30) for _ in range(20))
    assert splitter.feed(b"x\n\ndata: next\n\n") == [b"next"]
