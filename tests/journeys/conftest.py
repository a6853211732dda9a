"""One gateway with the demo model over two nodes, for all tests that only talk to it."""

from collections.abc import Iterator

import pytest

from tests.gateways import Gateway, running_gateway


@pytest.fixture(scope="package")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with running_gateway(tmp_path_factory.mktemp("gateway")) as running:
        yield running
