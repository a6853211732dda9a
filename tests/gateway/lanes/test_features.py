"""What a request asks for is known by the field that asks, and what a provider's lane offers."""

from pathlib import Path
from typing import Any

import pytest

from accounting.metering.prices import CloudPrices, PriceBook
from gateway.app import _cloud_worker
from gateway.dialects.openai import ChatRequest, CompletionRequest, Message
from gateway.lanes.cloud.lane import CloudLane
from gateway.lanes.cloud.worker.program import CloudWorker
from gateway.lanes.cloud.worker.providers import CloudConfiguration, Timeouts
from gateway.lanes.features import features_of
from gateway.settings import CloudModel, CloudSettings, Settings
from runtime.data_folder import DataFolder

CHAT: dict[str, Any] = {"model": "m", "messages": [Message("user", "Hi")]}
COMPLETION: dict[str, Any] = {"model": "m", "prompt": "Hi"}


@pytest.mark.parametrize(
    ("request_", "wanted"),
    [
        (ChatRequest(**CHAT, logprobs=True, top_logprobs=2), {"logprobs": "logprobs"}),
        (ChatRequest(**CHAT, logprobs=False), {}),
        (CompletionRequest(**COMPLETION, logprobs=0), {"logprobs": "logprobs"}),
        (
            CompletionRequest(**COMPLETION, logprobs=1, echo=True),
            {"logprobs": "logprobs", "echo_logprobs": "logprobs"},
        ),
        (CompletionRequest(**COMPLETION, echo=True), {}),
    ],
)
def test_log_probabilities_are_asked_for_by_their_field(request_: Any, wanted: dict[str, str]) -> None:
    assert features_of(request_) == wanted


@pytest.mark.parametrize(
    ("field", "value", "feature"),
    [
        ("tools", [{"type": "function", "function": {"name": "f"}}], "tools"),
        ("functions", [{"name": "f"}], "tools"),
        ("response_format", {"type": "json_object"}, "json"),
        ("modalities", ["text", "audio"], "audio"),
        ("audio", {}, "audio"),
        ("service_tier", "flex", "service_tier"),
        ("web_search_options", {}, "web_search"),
        ("prediction", {}, "prediction"),
    ],
)
def test_one_field_is_enough_to_ask(field: str, value: Any, feature: str) -> None:
    assert features_of(ChatRequest(**CHAT, **{field: value})) == {feature: field}


def test_a_providers_patience_is_the_settings() -> None:
    settings = Settings(cloud={"first_byte_s": 7, "silence_s": 8, "total_s": 9})
    worker = _cloud_worker(settings.cloud, DataFolder(Path("nowhere")))
    assert worker._configuration.timeouts == Timeouts(first_byte_s=7, between_chunks_s=8, total_s=9)


@pytest.mark.parametrize(
    ("model", "can"),
    [
        ("openai/gpt-4o-mini", True),
        ("anthropic/claude-sonnet-4-5", False),
        ("vertex_ai/claude-3-5-sonnet", False),
        ("mistral/mistral-large-latest", False),
    ],
)
def test_providers_that_give_no_log_probabilities_are_not_offered_for_them(model: str, can: bool) -> None:
    usd = {"prompt_usd_per_mtok": "1", "completion_usd_per_mtok": "1"}
    settings = CloudSettings(models={"m": CloudModel(model=model, **usd)})
    price = settings.models["m"].own_price
    assert price
    prices = PriceBook({("cloud", "m"): price}, "settings", CloudPrices.installed())
    (offer,) = CloudLane(settings, CloudWorker(CloudConfiguration({}, "none")), prices).offers("m")
    assert ("logprobs" in offer.features) is can
