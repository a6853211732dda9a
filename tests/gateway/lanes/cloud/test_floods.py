"""A provider that sends gigabytes, packed or in the open: its own request fails, and nothing else notices."""

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

import msgspec
import pytest

from gateway.lanes.cloud.worker.providers import CloudConfiguration, CloudModel
from tests.fakes.flooding_provider import FLOODS, flooding_provider
from tests.gateway.lanes.cloud.running import RunningWorker, all_events_of, running_worker

GROWTH_BYTES_MAX = 300 * 2**20
EXPECTED = {
    "gzip": {"provider_compressed"},
    "nested": {"provider_too_large"},
    "line": {"provider_too_large"},
    "events": {"provider_too_large"},
    "error": {"provider_failed"},
    "garbled": {"provider_garbled"},
}
_ADAPTERS = {"openai": ("/v1", "OPENAI_API_KEY"), "anthropic": ("", "ANTHROPIC_API_KEY")}


@pytest.fixture(scope="module")
def flooded(configuration: CloudConfiguration) -> Iterator[RunningWorker]:
    """Beside the good providers, one that floods both adapters."""
    with flooding_provider() as provider:
        floods = {
            f"{adapter}.{name}": CloudModel(f"{adapter}/{name}", provider.origin + path, key)
            for (adapter, (path, key)), name in product(_ADAPTERS.items(), FLOODS)
        }
        models = configuration.models | floods
        bounds = msgspec.structs.replace(configuration.timeouts, first_byte_s=60, between_chunks_s=60, total_s=60)
        flooded = msgspec.structs.replace(configuration, models=models, timeouts=bounds)
        with running_worker(flooded, from_template=True) as running:
            yield running


def test_a_flood_fails_alone(flooded: RunningWorker) -> None:
    """Its memory stays in bounds, and so does that of the process that all providers share."""
    assert flooded.chat("gpt").status_code == flooded.chat("claude").status_code == 200
    before = _most_bytes(flooded)
    codes: dict[str, set[str]] = {name: set() for name in FLOODS}
    for adapter, name in product(_ADAPTERS, FLOODS):
        codes[name].add(_code_of(flooded, f"{adapter}.{name}", is_stream=False))
    for name in ("gzip", "nested", "line", "events"):
        codes[name].add(_code_of(flooded, f"openai.{name}", is_stream=True))
    assert codes == EXPECTED
    assert _most_bytes(flooded) - before < GROWTH_BYTES_MAX
    assert flooded.chat("gpt").status_code == flooded.chat("claude").status_code == 200


def test_many_floods_of_one_host_leave_others_their_memory(flooded: RunningWorker) -> None:
    """Each is within the bound for itself for a while; together they are not."""
    before = _most_bytes(flooded)
    with ThreadPoolExecutor(8) as threads:
        floods = [threads.submit(_code_of, flooded, "openai.nested", is_stream=False) for _ in range(7)]
        assert flooded.chat("gpt").status_code == 200
        assert {flood.result() for flood in floods} <= {"provider_too_large"}
    assert _most_bytes(flooded) - before < GROWTH_BYTES_MAX


def _code_of(worker: RunningWorker, model: str, *, is_stream: bool) -> str:
    response = worker.chat(model, stream=is_stream)
    error = (all_events_of(response)[-1] if response.status_code == 200 else response.json())["error"]
    return str(error["code"])


def _most_bytes(worker: RunningWorker) -> int:
    """The most that the process has ever had in memory."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{worker.process.pid}/status").read_text())
    assert found
    return int(found[1]) * 1024
