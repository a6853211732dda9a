"""kill -9 of a maker at each named place: no gap, no wrong block, and the next maker continues."""

import random
from pathlib import Path
from typing import get_args

import pytest
from sqlalchemy import Engine

from accounting.proofs.maker import Failpoint
from tests.accounting.forks import processes
from tests.accounting.ledgers import ANSWER_S
from tests.accounting.proofs.doomed_maker import make
from tests.accounting.proofs.proven import checked, maker

PLACES: tuple[Failpoint, ...] = get_args(Failpoint)


def _last_event_before_death(dsn: str, key: Path, name: str, place: Failpoint, passes: int) -> int:
    receiver, sender = processes.Pipe(duplex=False)
    process = processes.Process(target=make, args=(dsn, key, name, place, passes, sender))
    process.start()
    sender.close()
    last = 0
    try:
        while receiver.poll(ANSWER_S):
            last = receiver.recv()
    except EOFError:
        process.join(ANSWER_S)
        assert process.exitcode == -9
        return last
    finally:
        process.kill()
        receiver.close()
    raise AssertionError(f"the maker did not reach {place}")


def _kill_often(dsn: str, engine: Engine, folder: Path, kills: int, seed: int) -> None:
    chance = random.Random(seed)
    for number in range(kills):
        place = PLACES[number % len(PLACES)]
        # A key is registered once: with the first block that it signs.
        passes = 1 if place == "key_registered" else chance.randint(1, 6)
        last = _last_event_before_death(dsn, folder / f"key{number}", f"r{number}", place, passes)
        left = checked(engine)
        assert (left.flaws, left.is_complete) == ((), True)
        # Of the same folder: its note of the newest block may be one behind, and never stands in its way.
        maker(engine, folder / f"key{number}").seal()
        verdict = checked(engine)
        assert (verdict.flaws, verdict.tail_events) == ((), 0)
        assert verdict.events >= last
        assert verdict.blocks >= number


def test_killed_makers_leave_a_whole_chain(dsn: str, engine: Engine, tmp_path: Path) -> None:
    _kill_often(dsn, engine, tmp_path, kills=6, seed=1)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_makers_killed_for_long(dsn: str, engine: Engine, tmp_path: Path) -> None:
    _kill_often(dsn, engine, tmp_path, kills=100, seed=2)
