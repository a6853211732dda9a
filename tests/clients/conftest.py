"""A gateway in a process of its own before a fake backend that has the whole API."""

from collections.abc import Iterator
from dataclasses import dataclass

import orjson
import pytest

from tests.clients.snippet_process import SnippetProcess
from tests.fakes.provider_server import ProviderServer
from tests.fakes.whole_api import whole_api
from tests.gateways import Gateway, running_gateway


@dataclass(frozen=True)
class Served:
    gateway: Gateway
    backend: ProviderServer


@pytest.fixture(scope="package")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with whole_api() as backend:
        pool = {
            "POOL__BACKENDS": orjson.dumps([{"name": "all", "kind": "openai", "base_url": f"{backend.origin}/v1"}])
        }
        settings = {name: value.decode() for name, value in pool.items()}
        with running_gateway(tmp_path_factory.mktemp("clients"), model=None, settings=settings) as gateway:
            yield Served(gateway, backend)


@pytest.fixture(scope="package")
def snippets() -> Iterator[SnippetProcess]:
    process = SnippetProcess()
    yield process
    process.close()
