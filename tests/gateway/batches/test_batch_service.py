"""What a line may do to the batch that it stands in."""

import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from gateway.batches.items import Items
from gateway.batches.job import BatchJob, Callers
from gateway.batches.output import Output
from gateway.batches.reply import BatchReply
from gateway.identity.caller import Caller
from gateway.requests.batch_jobs.batch_service import BatchService
from gateway.settings import Settings
from gateway.settings.batches import BatchesSettings
from tests.gateway.batches.test_output import BATCH, file_store
from tests.gateway.batches.working import jsonl


def service(retries_max: int) -> BatchService:
    """One that reaches neither requests nor responses."""
    settings, missing = Settings(batches=BatchesSettings(retries_max=retries_max)), cast(Any, None)
    return BatchService(missing, missing, missing, missing, missing, settings, lambda: None)


@pytest.mark.anyio
async def test_a_defect_in_reading_a_line_is_that_lines_answer(tmp_path: Path) -> None:
    """There is no store of responses here, which nobody expects."""
    file = tmp_path / "input.jsonl"
    body = {"model": "m", "input": "Hi"}
    file.write_bytes(
        jsonl({"custom_id": f"{at}", "method": "POST", "url": "/v1/responses", "body": body} for at in range(3))
    )
    output = Output(file_store(tmp_path / "files"), replace(BATCH, endpoint="/v1/responses"))
    job = BatchJob(replace(BATCH, endpoint="/v1/responses"))
    job.open(output, Items(file, 10_000, output.done))
    job.callers = Callers.of(Caller("k", "mr-", "ann", "", frozenset(("pool",))))
    desk = service(retries_max=0)
    assert not await desk.start(job, 1)
    assert (output.failed, output.completed, job.items.is_spent) == (3, 0, True)
    output.close()


@pytest.mark.anyio
async def test_a_request_to_ask_again_is_not_lost_where_its_owner_has_no_room_left(tmp_path: Path) -> None:
    file = tmp_path / "input.jsonl"
    file.write_bytes(jsonl([{"custom_id": "a", "method": "POST", "url": BATCH.endpoint, "body": {"model": "m"}}]))
    full = file_store(tmp_path / "files", bytes_max=1000)
    full.take(BATCH.owner, 1000)
    output = Output(full, BATCH)
    job = BatchJob(BATCH)
    job.open(output, Items(file, 10_000, output.done))
    job.items.refill()
    desk = service(retries_max=2)
    passing = BatchReply(503, "req_1", b"{}", retry_after_s=0)
    item = job.items.peek(math.inf)
    assert item
    for _ in range(2):
        assert job.items.peek(math.inf) is item
        job.items.take(item)
        assert await desk._put_back(job, item, passing)
        # It is there, and nobody turns round it meanwhile.
        assert not job.is_spent
        assert job.items.peek(time.monotonic()) is None
        assert job.held_until_s > time.monotonic()
    assert output.attempts[item.line] == 2
    assert not await desk._put_back(job, item, passing)  # it has had its tries
    await desk._write_down(job, item, passing)
    assert not output.done
    full.give_back(BATCH.owner, 1000)
    await desk._write_down(job, item, passing)
    assert output.done == {item.line}
    output.close()
