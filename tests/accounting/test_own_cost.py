"""What own machines cost, and what they draw where that can be read."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accounting.metering.own_cost import MAX_RATE_NANO, CostTerms, second_nano, work_nano
from accounting.metering.power import Energy, Zone, card_watts, find_zones, mean_watts, read_energy

USD = 10**9


def test_a_second_costs_its_electricity_and_its_wear() -> None:
    # 3.6 kW for a second are a thousandth of a kilowatt-hour.
    assert second_nano(CostTerms(USD, 0, 1), 3_600) == USD // 1_000
    assert second_nano(CostTerms(USD, 0, 1, idle_watts=3_600), 3_600) == 0
    assert second_nano(CostTerms(USD, 0, 1, idle_watts=9), 5) == 0
    # A machine of 31,557.60 dollars loses one thousandth of a dollar a second in a year.
    assert second_nano(CostTerms(0, 31_557_600 * 10**6, 1), 0) == USD // 1_000
    assert second_nano(CostTerms(0, 31_557_600 * 10**6, 2), 0) == USD // 2_000
    assert second_nano(CostTerms(10**15, 10**15, 0.01), 1e6) == MAX_RATE_NANO


@given(st.lists(st.integers(0, 10**15), max_size=5), st.integers(0, MAX_RATE_NANO))
def test_work_is_rounded_up_by_less_than_one(parts: list[int], rate_nano: int) -> None:
    assert (
        0
        <= sum(work_nano(each, rate_nano) for each in parts) - work_nano(sum(parts), rate_nano)
        < max(1, len(parts))
    )


def zone(root: Path, folder: str, name: str, energy_uj: str, range_uj: str = "1000000") -> Path:
    path = root / folder
    path.mkdir()
    (path / "name").write_text(f"{name}\n")
    (path / "energy_uj").write_text(f"{energy_uj}\n")
    (path / "max_energy_range_uj").write_text(f"{range_uj}\n")
    return path


def test_counters_are_read_once_each_and_may_restart(tmp_path: Path) -> None:
    first = zone(tmp_path, "intel-rapl:0", "package-0", "900000")
    zone(tmp_path, "intel-rapl:0:0", "core", "5")
    zone(tmp_path, "intel-rapl-mmio:0", "package-0", "900000")
    second = zone(tmp_path, "intel-rapl:1", "package-1", "0")
    zone(tmp_path, "intel-rapl:2", "broken", "no number")
    zones = find_zones(tmp_path)
    assert zones == tuple(Zone(each / "energy_uj", 1_000_000) for each in (first, second))
    before = read_energy(zones, 10.0)
    (first / "energy_uj").write_text("400000")
    (second / "energy_uj").write_text("500000")
    after = read_energy(zones, 10.5)
    assert mean_watts(zones, before, after) == pytest.approx((0.5 + 0.5) / 0.5)
    assert mean_watts(zones, before, before) is None
    (second / "energy_uj").unlink()
    assert mean_watts(zones, before, read_energy(zones, 10.5)) == pytest.approx(1.0)
    assert mean_watts(zones, before, Energy(11.0, {})) is None
    whole = zone(tmp_path, "intel-rapl:3", "psys", "1")
    assert [each.path for each in find_zones(tmp_path)] == [whole / "energy_uj"]
    assert find_zones(tmp_path / "nowhere") == ()


@pytest.mark.parametrize(
    ("says", "watts"),
    [("echo 61.50; echo 200.25", 261.75), ("echo '[N/A]'; echo 5", 5.0), ("echo none", None), ("exit 9", None)],
)
def test_cards_say_what_they_draw(tmp_path: Path, says: str, watts: float | None) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{says}\n")
    program.chmod(0o700)
    assert card_watts(lambda _: str(program)) == watts


def test_without_cards_there_is_no_figure() -> None:
    assert card_watts(lambda _: None) is None
