"""The current cost of a second of own machines: recorded when it changes, and measured if power can be read."""

import asyncio
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from accounting.errors import AmountInvalid
from accounting.metering import versions
from accounting.metering.own_cost import ANY_MACHINE, CLUSTER_LANE, CostTerms, rates
from accounting.metering.power import Energy, Zone, card_watts, find_zones, mean_watts, read_energy
from accounting.metering.prices import PricedModel
from accounting.money import parse_usd
from gateway.metrics.metrics import Metrics
from gateway.settings import CostsSettings

log = structlog.get_logger(__name__)

SAMPLE_S = 30.0
# The number of samples of a busy machine per measurement: a version of the rate lasts at least half an hour.
_SAMPLES = 60
# The power of the same work varies a little, so smaller changes are ignored.
_CHANGE_RATIO = 0.1
_MEASURED = re.compile(r"measured ([0-9]{1,7}) W")


@dataclass
class PowerMeter:
    """Reads this machine's power. One thread uses it at a time."""

    zones: tuple[Zone, ...] = field(default_factory=find_zones)
    _before: Energy | None = None

    def watts(self) -> float | None:
        """Return the counters' mean power since the last call, plus the cards' current power; None if unknown."""
        energy = read_energy(self.zones, time.monotonic())
        before, self._before = self._before, energy
        of_processors = mean_watts(self.zones, before, energy) if before else None
        of_cards = card_watts()
        known = [each for each in (of_processors, of_cards) if each is not None]
        # If counters exist, cards alone are not the whole machine: the first reading has no mean yet.
        return sum(known) if known and (of_processors is not None or not self.zones) else None


class Rates:
    """Keeps the versions of own machines' rates. `is_busy` returns whether this gateway is working."""

    def __init__(
        self,
        settings: CostsSettings,
        read: Callable[[], Session],
        write: Callable[[], Session],
        metrics: Metrics,
        is_busy: Callable[[], bool],
    ) -> None:
        self._settings = settings
        self._read = read
        self._write = write
        self._is_busy = is_busy
        self._now: dict[tuple[str, str], PricedModel] = {}
        self._task: asyncio.Task[None] | None = None
        metrics.own_cost_nano.read = self._rates_now

    async def start(self) -> None:
        """Record the declared rate, unless one was measured. Measuring continues in the background."""
        await asyncio.to_thread(self._begin)
        if self._settings.read_power:
            self._task = asyncio.create_task(self._measure(), name="power meter")

    async def stop(self) -> None:
        if self._task:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _measure(self) -> None:
        """Count only power during work: samples between which the gateway was idle are dropped."""
        meter, samples, was_busy = PowerMeter(), [], False
        while True:
            await asyncio.sleep(SAMPLE_S)
            is_busy = self._is_busy()
            try:
                watts = await asyncio.to_thread(meter.watts) if is_busy else None
                if watts is not None and was_busy:
                    samples.append(watts)
                if len(samples) >= _SAMPLES:
                    await asyncio.to_thread(self._take, sum(samples) / len(samples))
                    samples.clear()
            except Exception:
                # The task's edge: costs are informational, and no request waits for them.
                log.exception("power not measured")
            was_busy = is_busy

    def _begin(self) -> None:
        measured = self._measured_before() if self._settings.read_power else None
        if measured is None:
            self._now = self._rates(float(self._settings.watts), "declared")
        else:
            self._now = self._rates(measured, "measured")
        self._write_down(self._now)

    def _measured_before(self) -> float | None:
        """Return the watts measured before this start; prices may have changed since."""
        try:
            with self._read() as session:
                last = versions.version_at(session, CLUSTER_LANE, ANY_MACHINE, time.time_ns())
        except SQLAlchemyError as error:
            log.warning("own costs not read", reason=type(error).__name__)
            return None
        found = _MEASURED.fullmatch(last.priced.source) if last else None
        return float(found[1]) if found else None

    def _take(self, watts: float) -> None:
        """Record a measurement if it differs from the current rate."""
        measured = self._rates(watts, "measured")
        changed = {key: each for key, each in measured.items() if self._differs(key, each)}
        self._now |= changed
        self._write_down(changed)

    def _differs(self, key: tuple[str, str], priced: PricedModel) -> bool:
        now = self._now.get(key)
        if now is None or not now.compute_nano:
            return True
        assert priced.compute_nano is not None
        return abs(priced.compute_nano - now.compute_nano) > _CHANGE_RATIO * now.compute_nano

    def _rates(self, watts: float, source: str) -> dict[tuple[str, str], PricedModel]:
        settings = self._settings
        terms = CostTerms(
            parse_usd(settings.electricity_usd_per_kwh),
            parse_usd(settings.machine_usd),
            settings.life_years,
            float(settings.watts_idle),
        )
        try:
            return rates(terms, watts, settings.machines, source=f"{source} {watts:.0f} W")
        except AmountInvalid as error:
            log.error("own costs cannot be computed", reason=str(error))
            return {}

    def _write_down(self, prices: dict[tuple[str, str], PricedModel]) -> None:
        try:
            for (_, name), priced in prices.items():
                with self._write() as session, session.begin():
                    versions.record(session, {name: priced}, time.time_ns())
        except SQLAlchemyError as error:
            log.warning("own costs not saved", reason=type(error).__name__)

    def _rates_now(self) -> dict[tuple[str, ...], float]:
        any_machine = {lane: each for (lane, name), each in self._now.items() if name == ANY_MACHINE}
        return {(lane,): float(each.compute_nano or 0) for lane, each in any_machine.items()}
