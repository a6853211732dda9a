"""A start is lean: what serving models does without is not there until somebody wants it."""

import asyncio
import subprocess
import sys

import pytest
from alembic.config import Config
from alembic.script import ScriptDirectory
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message

from gateway.database import revisions
from gateway.http.on_demand import OnDemand

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
}


def _imported(module: str) -> set[str]:
    code = f"import sys, {module}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    return set(done.stdout.split())


def test_serving_models_imports_no_room_of_another_kind() -> None:
    assert not _SPARED & _imported("gateway.serving")


def test_a_command_that_only_prints_imports_no_gateway() -> None:
    assert not (_SPARED | {"sqlalchemy", "gateway.app"}) & _imported("gateway.cli.main")


def test_revisions_are_those_that_alembic_knows() -> None:
    """Files are named after them, so that a start need not ask Alembic."""
    config = Config()
    config.set_main_option("script_location", "migrations")
    scripts = ScriptDirectory.from_config(config)
    assert revisions() == sorted(script.revision for script in scripts.walk_revisions())
    assert revisions()[-1] == scripts.get_current_head()


@pytest.mark.anyio
async def test_what_is_made_on_demand_is_made_once_whoever_asks_at_once() -> None:
    made: list[ASGIApp] = []

    def make() -> ASGIApp:
        made.append(PlainTextResponse("here"))
        return made[-1]

    app = OnDemand(make)
    assert made == []
    sent = await asyncio.gather(*(_ask(app) for _ in range(5)))
    assert len(made) == 1
    assert all(messages[1]["body"] == b"here" for messages in sent)


async def _ask(app: ASGIApp) -> list[Message]:
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request"}

    async def send(message: Message) -> None:
        sent.append(message)

    await app({"type": "http", "method": "GET", "path": "/", "headers": []}, receive, send)
    return sent
