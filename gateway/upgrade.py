"""Migrates tables in a separate process that ends.

Otherwise Alembic's 7 MB would stay in memory. The process (`gateway.migration_process`) gets the DSN on stdin,
because it may contain a password. It ends when stdin closes, so it never outlives the gateway.
"""

import asyncio
from asyncio.subprocess import PIPE, Process
from contextlib import suppress

import msgspec

from gateway.database import MIGRATION_TIMEOUT_S, DatabaseUnusable, is_behind
from runtime.interpreter import command_of, environment
from runtime.one_answer import ask

_PATIENCE_S = 2.0 * MIGRATION_TIMEOUT_S
_END_S = 5.0


class Outcome(msgspec.Struct, frozen=True):
    """The process's last line on stdout, as JSON; `problem` is empty when the tables are up to date."""

    problem: str = ""


async def upgrade_in_process(dsn: str) -> None:
    """Upgrade the tables if they are behind. Cancelling the task ends the upgrade. Raises DatabaseUnusable."""
    if not is_behind(dsn):
        return
    # In its own session, so that a terminal's Ctrl-C reaches only the gateway, which ends the process silently.
    process = await asyncio.create_subprocess_exec(
        *command_of("gateway.migration_process"),
        stdin=PIPE,
        stdout=PIPE,
        env=environment(),
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(_PATIENCE_S):
            answer = await ask(process, msgspec.json.encode(dsn))
            status = process.returncode
    except TimeoutError:
        raise DatabaseUnusable(f"the database was not upgraded within {_PATIENCE_S:.0f} s") from None
    finally:
        await _end(process)
    problem = _read(answer).problem
    if problem or status:
        raise DatabaseUnusable(problem or f"the upgrade of the database ended with status {status}")


def _read(line: bytes) -> Outcome:
    try:
        return msgspec.json.decode(line, type=Outcome)
    except msgspec.DecodeError:
        return Outcome()


async def _end(process: Process) -> None:
    if process.returncode is None:
        with suppress(ProcessLookupError):
            process.kill()
        with suppress(TimeoutError):
            async with asyncio.timeout(_END_S):
                await process.wait()
