"""One cloud worker for all tests of this folder, between the fakes of two providers and clients on its socket."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.lanes.cloud.worker.providers import CloudConfiguration, CloudModel, ProviderLimits, Timeouts
from tests.fakes import anthropic_provider, behaviours, openai_provider
from tests.fakes.provider_server import ProviderServer
from tests.gateway.lanes.cloud.running import RunningWorker, running_worker

TIMEOUTS = Timeouts(connect_s=3, first_byte_s=3, between_chunks_s=2.5, total_s=5)
LIMITS = ProviderLimits(body_bytes_max=200_000, body_s=5, requests_in_flight_max=8, drain_s=2)
NOWHERE = "http://127.0.0.1:1/v1"


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def openai_fake() -> Iterator[ProviderServer]:
    with openai_provider.openai_provider() as server:
        yield server


@pytest.fixture(scope="session")
def anthropic_fake() -> Iterator[ProviderServer]:
    with anthropic_provider.anthropic_provider() as server:
        yield server


@pytest.fixture(scope="session")
def keys_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("keys") / "cloud_keys"
    path.write_text(f"OPENAI_API_KEY={openai_provider.KEY}\nANTHROPIC_API_KEY={anthropic_provider.KEY}\n")
    path.chmod(0o600)
    return path


@pytest.fixture(scope="session")
def configuration(
    openai_fake: ProviderServer, anthropic_fake: ProviderServer, keys_file: Path
) -> CloudConfiguration:
    """Every behaviour of both fakes as a model: `gpt` and `claude` are well, `gpt.aborts` and its like are not."""

    def openai(name: str, key_name: str = "OPENAI_API_KEY") -> CloudModel:
        return CloudModel(f"openai/{name}", openai_fake.origin + "/v1", key_name)

    def anthropic(name: str) -> CloudModel:
        return CloudModel(f"anthropic/{name}", anthropic_fake.origin, "ANTHROPIC_API_KEY")

    models = {
        "gpt": openai("fake"),
        "claude": anthropic("fake"),
        **{f"gpt.{name}": openai(f"fake.{name}") for name in behaviours.OPENAI},
        **{f"claude.{name}": anthropic(f"fake.{name}") for name in behaviours.ANTHROPIC},
        "gpt-without-key": openai("fake", key_name="ABSENT_API_KEY"),
        "mistral-without-key": CloudModel("mistral/fake"),
        "gpt-nowhere": CloudModel("openai/fake", NOWHERE, "OPENAI_API_KEY"),
        "claude-nowhere": CloudModel("anthropic/fake", NOWHERE, "ANTHROPIC_API_KEY"),
        "gpt-with-password": CloudModel("openai/fake", "http://me:hunter2@127.0.0.1:1/v1", "OPENAI_API_KEY"),
        "claude-with-password": CloudModel(
            "anthropic/fake", "http://me:hunter2@127.0.0.1:1/", "ANTHROPIC_API_KEY"
        ),
        "misnamed": CloudModel("nosuch/fake", NOWHERE),
    }
    return CloudConfiguration(models=models, keys_file=str(keys_file), timeouts=TIMEOUTS, limits=LIMITS)


@pytest.fixture(scope="session")
def worker(configuration: CloudConfiguration) -> Iterator[RunningWorker]:
    with running_worker(configuration) as running:
        yield running
