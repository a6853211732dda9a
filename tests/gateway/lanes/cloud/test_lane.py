"""The cloud lane over a real worker: how long which answers are waited for."""

import orjson
import pytest
from msgspec.structs import replace

from accounting.metering.prices import CloudPrices, PriceBook
from gateway.dialects.openai import read_request
from gateway.lanes.base import Call
from gateway.lanes.cloud import lane as cloud
from gateway.lanes.cloud.lane import CloudLane
from gateway.lanes.cloud.worker.program import CloudWorker
from gateway.lanes.cloud.worker.providers import CloudConfiguration, Timeouts
from gateway.settings import CloudModel, CloudSettings
from runtime.errors import LaneTimeout
from runtime.http import client
from tests.gateway.lanes.cloud.running import ANSWER, MESSAGES

pytestmark = pytest.mark.anyio
USD = {"prompt_usd_per_mtok": "1", "completion_usd_per_mtok": "1"}


class Caller:
    """Keeps what it is sent."""

    is_full = False

    def __init__(self) -> None:
        self.content = b""

    def write(self, data: bytes) -> None:
        self.content += data

    async def drain(self) -> None:
        raise AssertionError("it is never full")


def lane_of(configuration: CloudConfiguration, model: str, settings: CloudSettings) -> CloudLane:
    price = settings.models[model].own_price
    assert price
    prices = PriceBook({("cloud", model): price}, "settings", CloudPrices.installed())
    return CloudLane(settings, CloudWorker(replace(configuration, timeouts=Timeouts())), prices)


def call_of(model: str, *, stream: bool) -> Call:
    raw = orjson.dumps({"model": model, "messages": MESSAGES, "stream": stream})
    return Call("req_1", "chat", read_request("chat", raw), raw, "ann")


async def test_a_whole_answer_may_take_longer_than_a_first_byte(
    configuration: CloudConfiguration, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "LOOK_EVERY_S", 0.05)
    monkeypatch.setattr(cloud, "_WORKER_LATE_S", 0.0)
    model = "gpt.late"  # by 0.6 s
    settings = CloudSettings(models={model: CloudModel(model="openai/fake.late", **USD)}, first_byte_s=0.2)
    lane = lane_of(configuration, model, settings)
    try:
        (offer,) = lane.offers(model)
        answer = await lane.open(call_of(model, stream=False), offer)
        caller = Caller()
        await answer.body.send(caller)
        assert orjson.loads(caller.content)["choices"][0]["message"]["content"] == ANSWER
        with pytest.raises(LaneTimeout):
            await lane.open(call_of(model, stream=True), offer)
    finally:
        await lane.stop()
