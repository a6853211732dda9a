"""What an answer said is the same however it came: in which events, in which pieces, streamed or whole."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from accounting.metering.delivered import Called, Delivered, count_all
from gateway.lanes import transcript
from gateway.lanes.transcript import Transcript

# Halves of characters too: tokens of which two make one are sent so by some servers.
TEXT = st.text(st.characters(codec=None, categories=["Cs", "Lu", "Lo", "So", "Zs", "Cc"]), max_size=20)
CALLS = st.lists(st.tuples(TEXT.filter(bool), TEXT), max_size=3)
CHOICE = st.builds(
    lambda content, reasoning, calls: Delivered(content, reasoning, tuple(Called(*call) for call in calls)),
    TEXT,
    TEXT,
    CALLS,
)


@st.composite
def answers(draw: st.DrawFn) -> tuple[tuple[Delivered, ...], list[bytes]]:
    """Choices, and events that say them: each text in parts, the choices' events mixed."""
    choices = tuple(draw(st.lists(CHOICE, min_size=1, max_size=3)))
    queues = [
        [{"index": index, "delta": {}}, *({"index": index, "delta": delta} for delta in deltas(draw, choice))]
        for index, choice in enumerate(choices)
    ]
    events = []
    while queues := [queue for queue in queues if queue]:
        queue = draw(st.sampled_from(queues))
        events.append(b"data: " + json.dumps({"choices": [queue.pop(0)]}).encode() + b"\n\n")
    return choices, events


def deltas(draw: st.DrawFn, choice: Delivered) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [{"reasoning_content": part} for part in parts(draw, choice.reasoning)]
    found += [{"content": part} for part in parts(draw, choice.content)]
    for number, call in enumerate(choice.calls):
        functions = [{"name": part} for part in parts(draw, call.name)]
        functions += [{"arguments": part} for part in parts(draw, call.arguments)]
        found += [{"tool_calls": [{"index": number, "function": each}]} for each in functions]
    return found


def parts(draw: st.DrawFn, text: str) -> list[str]:
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=4)))
    return [text[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]


@given(answers(), st.integers(1, 5))
def test_any_stream_of_an_answer_says_the_same(
    answer: tuple[tuple[Delivered, ...], list[bytes]], together: int
) -> None:
    choices, events = answer
    said = Transcript()
    for start in range(0, len(events), together):
        said.add(b"".join(events[start : start + together]))
        if together == 1:
            said.choices()  # Asking on the way changes nothing.
    assert said.choices() == choices
    assert count_all(None, said.choices()) == count_all(None, choices)


@given(st.lists(CHOICE, min_size=1, max_size=3))
def test_a_whole_answer_says_what_its_stream_would(choices: list[Delivered]) -> None:
    messages = [
        {
            "content": choice.content,
            "reasoning_content": choice.reasoning,
            "tool_calls": [{"function": call._asdict()} for call in choice.calls],
        }
        for choice in choices
    ]
    content = json.dumps({"choices": [{"message": message} for message in messages]}).encode()
    said = Transcript()
    said.add(content[:7])
    said.add(content[7:])
    assert said.choices() == tuple(choices)


def test_a_long_answer_is_read_on_its_way_and_has_an_end() -> None:
    said = Transcript()
    event = b"data: " + json.dumps({"choices": [{"index": 0, "text": "mill " * 1_000}]}).encode() + b"\n\n"
    for _ in range(1_000):
        said.add(event)
        assert said._kept_bytes <= transcript._KEPT_BYTES_MAX
    (choice,) = said.choices()
    assert transcript.TEXT_CHARS_MAX <= len(choice.content) < transcript.TEXT_CHARS_MAX + 10_000


def test_what_makes_no_sense_says_nothing() -> None:
    said = Transcript()
    said.add(b"data: [DONE]\n\n" + b"data: {\n\n" + b"data: 7\n\n" + b'data: {"choices": 7}\n\n' + b": ping\n\n")
    said.add(
        b'data: {"choices": [7, {"delta": 7}, {"delta": {"content": 7, "tool_calls": [7, {"function": 7}]}}]}\n\n'
    )
    said.add(b'data: {"choices": [{"index": 0, "delta": {"content": "\xff"}}]}\n\n')
    assert "".join(choice.content for choice in said.choices()) == "\N{REPLACEMENT CHARACTER}"
