"""Log and ledger know the model that answered as well as the one that was asked for, where these are two."""

from pathlib import Path

import pytest
from sqlalchemy import select

from accounting.tables import usage_table
from tests.gateway.http.edges import Writer, backend, until, whole
from tests.gateway.requests.roads import ANSWER, receive, road, send

pytestmark = pytest.mark.anyio

ALIASES = {"aliases": {"gpt-4o-mini": ["m"]}}
FALLBACKS = {"fallbacks": {"big": ["m"]}}
# As asked for, and who answers.
SERVED = {"m": None, "gpt-4o-mini": "m", "big": "m"}


async def answer(body: bytes, writer: Writer) -> None:
    writer.write(whole(ANSWER))


async def test_behind_an_alias_and_in_anothers_place(tmp_path: Path) -> None:
    async with backend(answer) as one, road(tmp_path, one.base_url, pool=ALIASES, routing=FALLBACKS) as running:
        for asked in SERVED:
            assert (await receive(await send(running, model=asked))).status == 200
        log = running.services.request_log
        await until(lambda: len(log.newest()) == len(SERVED))
        assert {entry.model: entry.served_model for entry in log.newest()} == SERVED
        columns = usage_table.c
        with running.services.directory.read() as session:
            rows = session.execute(select(columns.model, columns.served_model)).all()
        assert {row.model: row.served_model for row in rows} == SERVED
