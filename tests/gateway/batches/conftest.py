"""One backend and one gateway for all tests that leave both as they were."""

from collections.abc import Iterator

import pytest

from tests.gateway.batches.mill import Mill, running_mill
from tests.gateway.batches.working import gateway_before
from tests.gateways import Gateway


@pytest.fixture(scope="package")
def mill() -> Iterator[Mill]:
    with running_mill() as running:
        yield running


@pytest.fixture(scope="package")
def gateway(mill: Mill, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    settings = {
        "BATCHES__LINES_MAX": "300",
        "SERVER__BODY_BYTES_MAX": "20000",
        "BATCHES__FILE_BYTES_MAX": "300000",
    }
    with gateway_before(mill, tmp_path_factory.mktemp("batches"), **settings) as running:
        yield running
