"""The catalogue of cheats, with real models behind the audits: who is caught, and how soon.

The short run draws 60 sellers of each kind from a dozen canaries, the long one 400 from some two hundred.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random

import pytest
import torch

from market.protocol.audits.sequential import ALPHA, FAILING_MAX
from market.protocol.audits.verdicts import Audit
from market.protocol.counting.padding_flags import padding_flags
from tests.market.cheats import Bench, Draw, Shown, caught_after, mixed
from tests.market.parties import NOW_MS
from tests.market.texts import honest_texts
from tests.market.trade import DIGEST

JOBS = 500
CAUGHT_ALWAYS = ("a smaller model", "canned answers", "padded tokens", "cut short")
SHORT = ("honest, bf16", *CAUGHT_ALWAYS)


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Shown]:
    shown = _catalogue(tmp_path_factory.mktemp("short"), 12)
    return {name: shown[name]() for name in SHORT}


def _catalogue(folder: Path, canaries: int) -> Mapping[str, Callable[[], Shown]]:
    torch.set_num_threads(1)
    bench = Bench(folder, canaries)
    bench.freeze()
    return bench.catalogue()


def caught(draw: Draw, sellers: int, *, is_probation: bool = True) -> list[int]:
    """After how many requests, in order; JOBS + 1 where it is not caught at all."""
    found = (caught_after(draw, Random(seed), jobs=JOBS, is_probation=is_probation) for seed in range(sellers))
    return sorted(each or JOBS + 1 for each in found)


def assert_caught(shown: Mapping[str, Shown], sellers: int) -> None:
    for name in CAUGHT_ALWAYS:
        assert caught(shown[name].draw, sellers)[-1] <= JOBS, name
    substituted = mixed(shown["honest, bf16"], shown["a smaller model"], 0.2)
    assert caught(substituted, sellers)[int(0.95 * sellers)] <= JOBS
    for name in shown:
        if name.startswith("honest"):
            assert not any(each.has_failed for each in shown[name].canaries), name


def test_cheats_are_caught_within_five_hundred_requests(shown: Mapping[str, Shown]) -> None:
    assert_caught(shown, 60)


def test_padding_is_seen_with_the_first_answer() -> None:
    text = next(honest_texts(3, 1))
    assert padding_flags(text) == ()
    assert padding_flags(text + "\u200b" * len(text)) == ("invisible", "repeated")


def at_the_limit(chance: Random) -> Audit:
    """An honest seller that fails as often as any honest one may."""
    failed = chance.random() < FAILING_MAX["canary"]
    return Audit("canary", "c", NOW_MS, DIGEST, ("by chance",) if failed else ())


def falsely_suspended(sellers: int) -> int:
    found = (caught_after(at_the_limit, Random(seed), jobs=10_000) for seed in range(sellers))
    return sum(each is not None for each in found)


def test_the_bound_is_below_a_thousandth_for_ten_thousand_requests() -> None:
    # Every second request an audit is the most that there can be.
    assert 10_000 / 2 * ALPHA < 0.001
    assert falsely_suspended(20) == 0


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_whole_catalogue(tmp_path: Path) -> None:
    shown = {name: show() for name, show in _catalogue(tmp_path, 240).items()}
    assert_caught(shown, 400)
    assert caught(shown["another model"].draw, 400)[-1] <= JOBS


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_honest_sellers_at_the_limit_are_not_suspended() -> None:
    assert falsely_suspended(1_000) == 0
