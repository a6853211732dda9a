"""Batches on a real gateway, through the official client."""

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import openai
from openai.types import Batch

from tests.gateway.batches.mill import MODEL, Mill
from tests.gateways import Gateway, running_gateway, until

Json = dict[str, Any]
CHAT: Final = "/v1/chat/completions"


@contextmanager
def gateway_before(mill: Mill, folder: Path, **settings: str) -> Iterator[Gateway]:
    backend = {"name": "mill", "kind": "openai", "base_url": mill.base_url}
    all_settings = {"POOL__BACKENDS": json.dumps([backend]), **settings}
    with running_gateway(folder, model=None, settings=all_settings) as gateway:
        yield gateway


def line(custom_id: str, text: str, **body: Any) -> Json:
    said = {"model": MODEL, "messages": [{"role": "user", "content": text}], **body}
    return {"custom_id": custom_id, "method": "POST", "url": CHAT, "body": said}


def lines(texts: Iterable[str]) -> bytes:
    return jsonl(line(f"id-{at}", text) for at, text in enumerate(texts))


def jsonl(objects: Iterable[Json]) -> bytes:
    return b"".join(json.dumps(one).encode() + b"\n" for one in objects)


def begin(client: openai.OpenAI, content: bytes, endpoint: Any = CHAT) -> Batch:
    file = client.files.create(file=("input.jsonl", content), purpose="batch")
    return client.batches.create(input_file_id=file.id, endpoint=endpoint, completion_window="24h")


def ended(client: openai.OpenAI, batch_id: str, timeout_s: float = 30.0) -> Batch:
    def look() -> Batch | None:
        batch = client.batches.retrieve(batch_id)
        return batch if batch.status in ("completed", "failed", "expired", "cancelled") else None

    return until(look, timeout_s)


def answers(client: openai.OpenAI, file_id: str | None) -> list[Json]:
    if file_id is None:
        return []
    return [json.loads(row) for row in client.files.content(file_id).text.splitlines()]
