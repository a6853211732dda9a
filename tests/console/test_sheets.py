"""CSV files that are sent while their rows are read: aborted after their time, by the file and not by its request."""

import asyncio

import pytest
from fastapi.responses import StreamingResponse

from gateway.console import sheets
from gateway.console.sheets import Rows, streamed_sheet

pytestmark = pytest.mark.anyio


async def test_a_file_that_takes_too_long_is_aborted_while_rows_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sheets, "_LASTS_S", 0.05)

    async def read(place: int | None, _: int) -> tuple[Rows, int]:
        await asyncio.sleep(0)
        return [(place or 0,)], (place or 0) + 1

    answer = streamed_sheet("rows", ("place",), read)
    assert isinstance(answer, StreamingResponse)
    pieces = aiter(answer.body_iterator)
    assert await anext(pieces) == "place\r\n"
    assert await anext(pieces) == "0\r\n"
    # The client is slow: it takes more than the file's time until it asks for the next piece.
    await asyncio.sleep(0.1)
    with pytest.raises(TimeoutError):
        await anext(pieces)
