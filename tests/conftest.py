"""Fixtures that every package's tests share."""

from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests.databases import KINDS, Databases, Kind

# How long an example takes is the machine's affair: properties hold or they do not.
settings.register_profile("house", deadline=None)
settings.load_profile("house")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def databases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Databases]:
    databases = Databases(tmp_path_factory.mktemp("databases"))
    yield databases
    databases.close()


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    """Each kind of database that Millrace runs on: a test that asks for it runs once for each."""
    kind: Kind = request.param
    return kind


@pytest.fixture
def dsn(databases: Databases, kind: Kind) -> Iterator[str]:
    """A new migrated database."""
    with databases.database(kind) as dsn:
        yield dsn
