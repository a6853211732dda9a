"""Fixtures that every package's tests share."""

import gc
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer

from tests.databases import KINDS, Databases, Kind
from tests.distribution import SharedScheduling, mix_waiting_files, schedule
from tests.examples import EXAMPLES
from tests.spared_work import spare_cpu
from tests.templates import use_templates
from tests.workers import fork_workers

# How long an example takes is the machine's affair: properties hold or they do not. A run says of the same code
# the same each time; `make test-slow` looks elsewhere (--hypothesis-profile=wide).
_CALM = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("normal", _CALM, derandomize=True, max_examples=EXAMPLES)
settings.register_profile("wide", _CALM)


spare_cpu()
use_templates()

# Collection imports every library there is: millions of objects that stay. The garbage collector is off meanwhile,
# and never looks at these objects again.
gc.disable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config) -> None:
    fork_workers(config)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> SharedScheduling | None:
    return schedule(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mix_waiting_files(items)


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()
    gc.enable()
    # The first number counts new objects. Python's own 700 takes 4% of the CPU.
    gc.set_threshold(10_000, 5, 10)


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile(config.getoption("--hypothesis-profile") or "normal")


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
