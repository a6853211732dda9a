"""/admin/preemptible-key and /admin/idle: routes for the selling agent beside this gateway."""

import asyncio
import time
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Query

from gateway.api.authority import Operator
from gateway.app_state import IdleWatch, PreemptibleJobs, Settings
from gateway.lanes.preemptible.agent import AgentWord
from gateway.lanes.preemptible.key import issue_preemptible_key

WAIT_S_MAX = 60.0

router = APIRouter(prefix="/admin")

WaitS = Annotated[float, Query(ge=0, le=WAIT_S_MAX)]
State = Annotated[str | None, Query(max_length=200)]


@router.post("/preemptible-key")
async def make_preemptible_key(authority: Operator, settings: Settings, jobs: PreemptibleJobs) -> dict[str, Any]:
    """Create a key for preemptible market jobs, valid until the next one is created or this gateway restarts."""
    keys, folder = authority.directory.keys, settings.data_dir
    issued = await asyncio.to_thread(issue_preemptible_key, keys, jobs, folder, authority.actor)
    return {"key": issued.token, "key_id": issued.row.key_id, "prefix": issued.row.prefix}


@router.get("/idle")
async def show_idle(
    _: Operator,
    watch: IdleWatch,
    jobs: PreemptibleJobs,
    wait_s: WaitS = 0.0,
    version: int | None = None,
    state: State = None,
) -> dict[str, Any]:
    """Show how idle the gateway is; with `version`, on the next change or after `wait_s`.

    With `state` the agent reports its own state, which the console shows.
    """
    if state is not None:
        jobs.agent = AgentWord(state, time.monotonic())
    found = await (watch.state() if version is None else watch.after(version, wait_s))
    return asdict(found)
