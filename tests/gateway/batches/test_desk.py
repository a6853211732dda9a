"""What a line may do to the batch that it stands in."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from gateway.batches.desk import Desk
from gateway.batches.items import Items
from gateway.batches.job import Callers, Job
from gateway.batches.output import Output
from gateway.identity.caller import Caller
from gateway.services import Services
from gateway.settings.batches import BatchesSettings
from tests.gateway.batches.test_output import BATCH, shelf
from tests.gateway.batches.working import jsonl


@pytest.mark.anyio
async def test_a_defect_in_reading_a_line_is_that_lines_answer(tmp_path: Path) -> None:
    """There is no store of responses here, which nobody expects."""
    file = tmp_path / "input.jsonl"
    body = {"model": "m", "input": "Hi"}
    file.write_bytes(
        jsonl({"custom_id": f"{at}", "method": "POST", "url": "/v1/responses", "body": body} for at in range(3))
    )
    output = Output(shelf(tmp_path / "files"), replace(BATCH, endpoint="/v1/responses"))
    job = Job(replace(BATCH, endpoint="/v1/responses"))
    job.open(output, Items(file, 10_000, output.done))
    job.callers = Callers.of(Caller("k", "mr-", "ann", "", frozenset(("pool",))))
    settings = SimpleNamespace(batches=BatchesSettings(retries_max=0))
    desk = Desk(cast(Services, SimpleNamespace(settings=settings, responses=None)), lambda: None)
    assert not await desk.start(job, 1)
    assert (output.failed, output.completed, job.items.is_spent) == (3, 0, True)
    output.close()
