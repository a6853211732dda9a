"""Which batches are worked off at a time, and what becomes of one that cannot be ended."""

import asyncio
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.app import open_services
from gateway.requests.batch_jobs.batch_service import BatchService
from gateway.requests.batch_jobs.lifecycle import BatchLifecycle
from gateway.requests.batch_jobs.runner import JOBS_MAX, Runner, may_open
from gateway.settings import Settings
from runtime.data_folder import DataFolder
from tests.gateway.batches.test_output import BATCH


@given(st.lists(st.integers(0, 40), max_size=500))
def test_nobody_takes_the_places_of_all(wishes: list[int]) -> None:
    opened: Counter[int] = Counter()
    for owner in wishes:
        if may_open(opened[owner], opened.total()):
            opened[owner] += 1
        elif not opened[owner]:
            assert opened.total() == JOBS_MAX
    assert opened.total() <= JOBS_MAX
    assert max(opened.values(), default=0) <= 6


def test_many_batches_of_one_leave_a_place_for_each_other_owner() -> None:
    opened = Counter({"busy": 0})
    for _ in range(JOBS_MAX):
        opened["busy"] += may_open(opened["busy"], opened.total())
    assert opened["busy"] == 6
    for owner in range(JOBS_MAX - 6):
        assert may_open(0, opened.total())
        opened[str(owner)] += 1


@pytest.mark.anyio
async def test_a_batch_that_cannot_end_is_not_tried_over_and_over(tmp_path: Path) -> None:
    folder = DataFolder(tmp_path)
    folder.prepare()
    async with open_services(Settings(data_dir=tmp_path), folder) as services:
        # Without its input file nothing can be said of its lines. Nobody but this runner looks for it.
        services.batches.store.add(replace(BATCH, status="cancelling", total=1))
        life = BatchLifecycle(services.keys, services.batches, services.settings)
        service = cast(BatchService, SimpleNamespace())  # no request of it is started
        runner = Runner(services.batches, life, service, concurrency=1)
        runner._place = BATCH.folder_id
        runner.start()
        async with asyncio.timeout(60):
            while not runner._resting_until_s:
                await asyncio.sleep(0.01)
        services.batches.is_news = True
        await runner._look()
        assert (list(runner._resting_until_s), runner._jobs) == ([BATCH.id], {})
        await runner.stop()
