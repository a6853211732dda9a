"""One range for all attacks: what one of them left behind would hurt the next."""

from collections.abc import Iterator

import pytest

from tests.gateway.hostile.range import Range, open_range


@pytest.fixture(scope="package")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Range]:
    with open_range(tmp_path_factory.mktemp("hostile")) as made:
        yield made
