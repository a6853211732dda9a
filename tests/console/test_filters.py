"""How figures are written: no price that is not nothing reads as nothing, and no mark-up gets in."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.console.filters import count, ms, short_id, size, usd, when


@pytest.mark.parametrize(
    ("amount_nano", "text"),
    [
        (0, "$0.00"),
        (1, "< $0.0001"),
        (-1, "> -$0.0001"),
        (50_000, "$0.0001"),
        (1_234_567, "$0.0012"),
        (9_999_999, "$0.0100"),
        (10_000_000, "$0.01"),
        (-1_234_567_890_000, "-$1,234.57"),
        (None, "–"),
    ],
)
def test_dollars_have_four_decimals_only_below_a_cent(amount_nano: int | None, text: str) -> None:
    assert usd(amount_nano) == text


@given(st.integers(1, 10**15))
def test_no_amount_reads_as_nothing(amount_nano: int) -> None:
    assert usd(amount_nano) not in ("$0.00", "$0.0000")
    assert usd(-amount_nano).replace("> ", "< ").replace("-", "") == usd(amount_nano)


def test_units_are_those_that_read_well() -> None:
    assert [ms(value) for value in (None, 0.4, 120, 1500, 61_000, 7_260_000)] == [
        "–",
        "0.4 ms",
        "120 ms",
        "1.5 s",
        "1 min 1 s",
        "2 h 1 min",
    ]
    assert [size(value) for value in (None, 512, 3 * 2**30, 700 * 2**20)] == ["–", "512 B", "3.0 GiB", "700 MiB"]
    assert [count(value) for value in (None, 1204, 3.25, 2.0)] == ["–", "1,204", "3.2", "2"]


def test_what_becomes_markup_is_escaped() -> None:
    assert (
        short_id('"><script>')
        == '<code class="mr-id" title="&#34;&gt;&lt;script&gt;">&#34;&gt;&lt;script&gt;</code>'
    )
    assert 'datetime="2026-11-23T08:36:12.500Z"' in when(1795422972500000000)
    assert when(None) == "–"
