"""What the benchmarks make of what they saw: wrong figures would look like any others."""

import pytest

from bench.cable import SEGMENT_BYTES, wire_bytes
from bench.chain import Chain
from bench.standing import Demand, ratios_table
from bench.streams import Answer, Speeds, summarise
from bench.work import Measured


def stream(first_s: float, gap_s: float, pieces: list[int], tokens: int) -> Answer:
    times = [first_s + number * gap_s for number in range(len(pieces))]
    return Answer(sent_s=1.0, events_s=times, pieces=pieces, text="x" * sum(pieces), tokens=tokens)


def test_tokens_count_by_their_text_and_only_once_all_streams_have_begun() -> None:
    """The second stream's last event brings three tokens at once; what came before it had begun is not counted."""
    early = stream(2.0, 1.0, [4] * 10, tokens=10)
    late = stream(6.5, 2.0, [4, 4, 12], tokens=5)
    speeds = summarise([early, late])
    # From 6.5 to 11 s: five tokens of the early stream, four of the late one.
    assert speeds.decode_tokens_per_s == pytest.approx(9 / 4.5)
    assert speeds.stream_tokens_per_s == pytest.approx((1.0 + 4 / 4) / 2)
    assert speeds.ttft_ms == pytest.approx((1000 + 5500) / 2)
    assert speeds.gap_p99_ms == pytest.approx(2000)


def test_ratios_are_of_the_same_round() -> None:
    """Rounds in which only one of the two was measured do not count, whatever they would say."""

    def row(engine: str, number: int, tokens_per_s: float) -> Measured:
        speeds = Speeds(
            ttft_ms=100 / tokens_per_s,
            stream_tokens_per_s=tokens_per_s,
            decode_tokens_per_s=tokens_per_s,
            gap_p50_ms=1,
            gap_p99_ms=1,
        )
        return Measured(engine=engine, work="lan-1", round=number, speeds=speeds)

    rows = [row("us", 0, 20), row("them", 0, 10), row("us", 1, 3), row("them", 1, 1), row("them", 2, 500)]
    table = ratios_table(rows, "us", "them")
    assert "| 2.50x (2.00-3.00) | >= 1x | >= 1.3x | aim |" in table
    assert "| 0.42x (0.33-0.50) | <= 0.5x | <= 0.25x | must |" in table
    assert Demand("", "", "ttft_ms", 0.5, 0.25, at_most=True).verdict(0.51) == "missed"


def test_a_grounded_prompt_holds_its_answer_in_phrases() -> None:
    chain = Chain()
    prompt, at = chain.grounded_prompt(512, 128, 16, "seed")
    answer = chain.answer(at, 128)
    assert len(prompt) == 512
    assert prompt[-1] == chain.cycle[at]
    runs = {tuple(prompt[first : first + 16]) for first in range(512)}
    assert all(tuple(answer[first : first + 16]) in runs for first in range(0, 128, 16))
    plain, _ = chain.prompt(512, "seed")
    fours = {tuple(plain[first : first + 4]) for first in range(512)}
    assert not any(tuple(answer[first : first + 4]) in fours for first in range(124))


def test_an_offloaded_frame_takes_as_long_as_its_segments() -> None:
    headers, on_wire = 66, 24
    assert wire_bytes(headers + SEGMENT_BYTES) == headers + SEGMENT_BYTES + on_wire
    assert wire_bytes(headers + 3 * SEGMENT_BYTES) == 3 * (headers + SEGMENT_BYTES + on_wire)
    assert wire_bytes(headers) == headers + on_wire
