"""A start is lean: what serving models does without is not loaded until it is needed."""

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from alembic.config import Config
from alembic.script import ScriptDirectory
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message

from cluster.control.specs import DeploymentSpec
from cluster.controller import Controller
from cluster.nodes.local_nodes import LocalNodes
from cluster.trust.addresses import Target
from gateway.database import revisions
from gateway.http.on_demand import OnDemand
from gateway.serving import Running, _start_cluster
from gateway.settings import Settings

# Each is megabytes, and a tenth of a second or so.
_SPARED = {
    "alembic",
    "fastapi",
    "jinja2",
    "zeroconf",
    "tokenizers",
    "httpx",
    "aiohttp",
    "litellm",
    "torch",
    "redis",
    "stripe",
}


_LOOK = """
import importlib, os, sys, typer.main
def show(module):
    importlib.import_module(module)
    print(module, *sys.modules, flush=True)
show("gateway.cli.main")
commands = typer.main.get_command(sys.modules["gateway.cli.main"].app).commands
commands["up"]
show("gateway.cli.serving")
list(commands.values())
show("gateway.cli.users")
show("gateway.serving")
if child := os.fork():
    assert os.waitpid(child, 0)[1] == 0
    show("gateway.web")
else:
    show("gateway.billing.payments.factory")
"""


@pytest.fixture(scope="module")
def imported() -> dict[str, set[str]]:
    """What each module has imported, with the modules before it: one process saves most of the imports."""
    done = subprocess.run([sys.executable, "-c", _LOOK], capture_output=True, text=True, check=True, timeout=60)
    lines = [line.split() for line in done.stdout.splitlines()]
    return {module: set(modules) for module, *modules in lines}


def test_a_command_that_only_prints_imports_no_gateway(imported: dict[str, set[str]]) -> None:
    assert "gateway.cli.payments" in imported["gateway.cli.users"], "every command was built"
    assert not (_SPARED | {"sqlalchemy", "gateway.app"}) & imported["gateway.cli.users"]


def test_a_command_imports_no_other(imported: dict[str, set[str]]) -> None:
    assert not {name for name in imported["gateway.cli.main"] if name.startswith("gateway.")} - {
        "gateway.cli",
        "gateway.cli.main",
    }
    assert not {"gateway.cli.users", "gateway.cli.keys", "gateway.cli.models"} & imported["gateway.cli.serving"]


def test_serving_models_imports_no_room_of_another_kind(imported: dict[str, set[str]]) -> None:
    assert not _SPARED & imported["gateway.serving"]
    # Of the market only the words that its settings are checked by.
    rooms = ("market.buyer", "market.seller", "market.audits", "market.marketplace", "market.protocol.channels")
    assert not [name for name in imported["gateway.serving"] if name.startswith(rooms)]


def test_payments_are_imported_where_there_are_some_and_stripe_when_it_is_asked(
    imported: dict[str, set[str]],
) -> None:
    payments = {"stripe", "gateway.billing.payments", "accounting.payments.client"}
    assert not payments & imported["gateway.web"]
    assert not {"stripe", "fastapi"} & imported["gateway.billing.payments.factory"]


def test_revisions_are_those_that_alembic_knows() -> None:
    """Files are named after them, so that a start need not ask Alembic."""
    config = Config()
    config.set_main_option("script_location", "migrations")
    scripts = ScriptDirectory.from_config(config)
    assert revisions() == sorted(script.revision for script in scripts.walk_revisions())
    assert revisions()[-1] == scripts.get_current_head()


@pytest.mark.anyio
async def test_what_is_made_on_demand_is_made_once_for_simultaneous_requests() -> None:
    made: list[ASGIApp] = []

    def make() -> ASGIApp:
        made.append(PlainTextResponse("here"))
        return made[-1]

    app = OnDemand(make)
    assert made == []
    sent = await asyncio.gather(*(_ask(app) for _ in range(5)))
    assert len(made) == 1
    assert all(messages[1]["body"] == b"here" for messages in sent)


class Slow:
    """Stands for the controller, whose model would take minutes to load."""

    is_loading: bool | None = None
    further = ()

    def __init__(self) -> None:
        self._loaded = asyncio.Event()

    @property
    def chat(self) -> "Slow":
        return self

    def new_token(self) -> str:
        return ""

    async def load_model(self, *given: object) -> None:
        self.is_loading = True
        try:
            await self._loaded.wait()
        finally:
            self.is_loading = False

    async def wait_ready(self, within_s: float) -> None:
        raise AssertionError("there is nobody to wait for")


class Broken(LocalNodes):
    """The first process cannot be started, which takes a moment to turn out."""

    async def start(self, controller: Target, tokens: list[str]) -> None:
        await asyncio.sleep(0.01)
        raise FileNotFoundError


@pytest.mark.anyio
async def test_nothing_loads_on_when_the_nodes_cannot_start(tmp_path: Path) -> None:
    cluster: Any = {"model": "m", "nodes": 1}
    settings = Settings(data_dir=tmp_path, cluster=cluster)
    slow: Any = Slow()
    running = Running("", "", Target("127.0.0.1", 1), settings, slow, slow)
    with pytest.raises(FileNotFoundError):
        await _start_cluster(settings, running, Broken(1, tmp_path), lambda *_: None)
    assert slow.is_loading is False


@pytest.mark.anyio
async def test_a_further_model_without_files_does_not_stop_the_gateway(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    cluster: Any = {"models": [{"name": "gone", "model": str(empty)}]}
    settings = Settings(data_dir=tmp_path, cluster=cluster)
    controller = Controller(tmp_path / "cluster", further=[DeploymentSpec("gone", str(empty))])
    nobody: Any = None
    running = Running("", "", Target("127.0.0.1", 1), settings, nobody, controller)
    nodes = LocalNodes(0, tmp_path / "nodes")
    try:
        await _start_cluster(settings, running, nodes, lambda *_: None)
    finally:
        await nodes.stop()
    assert controller.chats[1].status[0] == "failed"


async def _ask(app: ASGIApp) -> list[Message]:
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request"}

    async def send(message: Message) -> None:
        sent.append(message)

    await app({"type": "http", "method": "GET", "path": "/", "headers": []}, receive, send)
    return sent
