"""What stands beside a gateway whose commands are tried: an Ollama that keeps what it was told, a Stripe."""

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web
from typer.testing import CliRunner, Result

from gateway.cli.main import app
from tests.fakes import pool_servers as servers
from tests.fakes.stripe.server import ACCOUNT_SECRET, API_KEY, StripeServer

MODEL = "qwen3:8b"


@dataclass
class Outside:
    """Where both are, and each body that the Ollama got."""

    base_url: str
    stripe: StripeServer
    told: list[Any] = field(default_factory=list)

    @property
    def settings(self) -> dict[str, str]:
        return {
            "POOL__BACKENDS": json.dumps([{"name": "desk", "base_url": self.base_url, "kind": "ollama"}]),
            "MARKETPLACE__ENABLED": "true",
            "PAYMENTS__SECRET_KEY": API_KEY,
            "PAYMENTS__WEBHOOK_SECRETS": json.dumps([ACCOUNT_SECRET]),
            "PAYMENTS__BASE_URL": self.stripe.url,
        }


@contextmanager
def outside() -> Iterator[Outside]:
    stripe, server = StripeServer(), servers.ollama()
    loop, ended = asyncio.new_event_loop(), asyncio.Event()
    ready = threading.Event()
    found = Outside("", stripe)

    def generate(body: Any) -> Any:
        found.told.append(body)
        return {"model": body["model"], "done": True}

    async def serve() -> None:
        async with servers.running(server):
            found.base_url = server.base_url
            ready.set()
            await ended.wait()

    server.answers["/api/generate"] = generate
    server.answers["/v1/chat/completions"] = answered
    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    stripe.start()
    assert ready.wait(60)
    try:
        yield found
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join(60)
        loop.close()
        stripe.stop()


def answered(body: dict[str, Any]) -> web.Response:
    """A stream of as many words as were asked for; its prompt is as long as its messages."""
    words = [f"w{number} " for number in range(body.get("max_tokens", 4))]
    head = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": body["model"]}
    chunks: list[dict[str, Any]] = [
        head | {"choices": [{"index": 0, "delta": {"content": word}, "finish_reason": None}]} for word in words
    ]
    chunks.append(head | {"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]})
    prompt = sum(len(message["content"].split()) for message in body["messages"])
    usage = {"prompt_tokens": prompt, "completion_tokens": len(words), "total_tokens": prompt + len(words)}
    chunks.append(head | {"choices": [], "usage": usage})
    text = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
    return web.Response(body=text.encode(), content_type="text/event-stream")


def millrace(folder: Path, *words: str, said: str | None = None) -> Result:
    return CliRunner().invoke(app, [*words, "--data-dir", str(folder)], input=said)


def data(result: Result) -> Any:
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def completed(line: str, folder: Path) -> list[str]:
    """What bash is offered behind this line."""
    asked = {"_MILLRACE_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
    done = CliRunner().invoke(app, env=asked | {"MILLRACE_DATA_DIR": str(folder)}, prog_name="millrace")
    assert done.stderr == ""
    return done.stdout.split()
