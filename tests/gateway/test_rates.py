"""What own machines cost: declared or measured, written down where it changes, told as a metric."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine

from accounting.metering.versions import versions_now, versions_of
from accounting.money import NANO_PER_USD
from cluster.controller import Controller
from gateway.billing.metering.factory import open_recounter, use_cluster
from gateway.billing.metering.rates import Rates
from gateway.metrics.metrics import Metrics
from gateway.settings import CostsSettings, MeteringSettings
from runtime.database import open_engine, read_sessions, write_sessions

pytestmark = pytest.mark.anyio

DEMO = Path(__file__).parents[2] / "demo" / "model"


@pytest.fixture
def engine(dsn: str) -> Iterator[Engine]:
    engine = open_engine(dsn)
    yield engine
    engine.dispose()


async def started(engine: Engine, metrics: Metrics, **settings: object) -> Rates:
    costs = CostsSettings.model_validate({"electricity_usd_per_kwh": "3.60", "read_power": False} | settings)
    rates = Rates(costs, read_sessions(engine), write_sessions(engine), metrics, lambda: False)
    await rates.start()
    return rates


def known(engine: Engine) -> list[tuple[str, str, str, int | None]]:
    with read_sessions(engine)() as session:
        found = [(each.name, each.priced) for each in versions_now(session, time.time_ns())]
    return [(priced.lane, name, priced.source, priced.compute_nano) for name, priced in found]


async def test_declared_and_measured_rates_are_versions(engine: Engine) -> None:
    metrics = Metrics.create()
    # 100 W for a second at 3.60 a kilowatt-hour are a ten-thousandth of a dollar.
    second_nano = NANO_PER_USD // 10_000
    rates = await started(engine, metrics, watts=100, machines={"desk": 300})
    declared = [
        ("cluster", "*", "declared 100 W", 2 * second_nano),
        ("pool", "*", "declared 100 W", second_nano),
        ("pool", "desk", "declared 100 W", 3 * second_nano),
    ]
    assert known(engine) == declared
    assert b'millrace_own_cost_nano{lane="pool"} 100000.0' in metrics.render()
    rates._take(105.0)
    assert known(engine) == declared
    rates._take(200.0)
    assert known(engine)[1] == ("pool", "*", "measured 200 W", 2 * second_nano)
    await rates.stop()
    # Who measures goes on with what was measured, at the prices of today; who does not, with what is declared.
    again = await started(engine, metrics, watts=100, read_power=True, electricity_usd_per_kwh="7.20")
    assert known(engine)[1] == ("pool", "*", "measured 200 W", 4 * second_nano)
    await again.stop()
    await (await started(engine, metrics, watts=100)).stop()
    assert known(engine)[1] == declared[1]
    with read_sessions(engine)() as session:
        assert len([each for each in versions_of(session, "*") if each.priced.lane == "pool"]) == 4


async def test_the_clusters_model_is_counted_with_its_own_tokenizer(tmp_path: Path) -> None:
    recounter = open_recounter(MeteringSettings(), Metrics.create())
    controller = Controller(tmp_path)
    use_cluster(recounter, controller)
    assert not recounter.tokenizers.knows("model")
    try:
        await controller.chat.load_model(str(DEMO))
        assert recounter.tokenizers.find("model") is not None
        assert not recounter.tokenizers.knows("other")
    finally:
        await controller.stop()
