"""Backends whose usage makes no sense: the delivered text is counted, and the caller sees that count."""

import json
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from accounting.tables import usage_table
from tests.gateway.http.edges import DONE, SSE, Edge, Writer, backend, chunk, until, whole
from tests.gateway.requests.roads import receive, road, send
from tests.gateway.requests.talkers import CREDITS, TIME_S, WORD, paid, spent, spoken

pytestmark = pytest.mark.anyio

WORDS = 30
NONSENSE = {
    "negative": '{"prompt_tokens": 1, "completion_tokens": -5}',
    "huge": '{"prompt_tokens": 1, "completion_tokens": 1000000000000000000000000000000}',
    "beyond range": '{"prompt_tokens": 1, "completion_tokens": 1000000001}',
    "infinite": '{"prompt_tokens": 1, "completion_tokens": 1e400}',
    "text": '{"prompt_tokens": 1, "completion_tokens": "30"}',
    "float": '{"prompt_tokens": 1, "completion_tokens": 0.5}',
    "NaN": '{"prompt_tokens": 1, "completion_tokens": NaN}',
    "boolean": '{"prompt_tokens": 1, "completion_tokens": true}',
    "prompt": '{"prompt_tokens": -1, "completion_tokens": 1}',
    "cached": '{"prompt_tokens": 1, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": -9}}',
    "thought": '{"completion_tokens": 1, "completion_tokens_details": {"reasoning_tokens": 1.5}}',
    "total": '{"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": -7}',
    "details": '{"prompt_tokens": 1, "completion_tokens": 1, "prompt_tokens_details": "none"}',
    "list": "[1, 1]",
    "number": "7",
    "empty": "{}",
    "noughts": '{"prompt_tokens": 1, "completion_tokens": 0}',
}


async def odd(body: bytes, writer: Writer) -> None:
    """Says so many words, and the usage that the request's user names: beside the last word, or behind it."""
    asked = json.loads(body)
    name, _, place = asked["user"].partition("/")
    usage = b', "usage": ' + NONSENSE[name].encode() + b"}"
    if not asked.get("stream"):
        message = {"role": "assistant", "content": WORD * WORDS}
        answer = {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
        writer.write(whole(json.dumps(answer).encode()[:-1] + usage))
        return
    writer.write(SSE + chunk(spoken()) * (WORDS - 1))
    last = spoken(finish="stop")
    if place:
        writer.write(chunk(last[: last.rindex(b"}")] + usage + b"\n\n"))
    else:
        writer.write(chunk(last) + chunk(b'data: {"choices": []' + usage + b"\n\n"))
    writer.write(chunk(DONE) + b"0\r\n\r\n")


async def ask(running: Edge, model: str, user: str, **fields: Any) -> tuple[int, list[Any]]:
    """The words that came, and every usage; no words of an answer that is none."""
    answered = await receive(await send(running, model=model, user=user, **fields), TIME_S)
    if answered.status != 200:
        return 0, []
    parts = [json.loads(part) for part in answered.events or [answered.content] if part != b"[DONE]"]
    choices = [choice for part in parts for choice in part["choices"]]
    words = sum((choice.get("delta") or choice["message"])["content"].count(WORD) for choice in choices)
    return words, [part["usage"] for part in parts if part.get("usage") is not None]


def is_ours(usage: Any) -> bool:
    """Whether it says what was said, in whole numbers."""
    counts = [usage[name] for name in ("prompt_tokens", "completion_tokens", "total_tokens")]
    return set(map(type, counts)) == {int} and counts[1] == WORDS and counts[2] == counts[0] + WORDS


async def booked(running: Edge) -> tuple[Any, ...]:
    await until(lambda: running.services.bookkeeper.waiting == 0, TIME_S)
    columns = usage_table.c
    newest = select(columns.count_source, columns.completion_tokens, columns.charge_nano)
    newest = newest.order_by(columns.started_ns.desc()).limit(1)
    return tuple(await running.services.ledger.look(lambda session: session.execute(newest).one()))


async def test_the_text_is_charged_where_the_providers_count_makes_no_sense(tmp_path: Path) -> None:
    charged = 0
    async with paid(tmp_path, odd, CREDITS) as (running, _):
        for name, usage in NONSENSE.items():
            wants = {"stream": True, "stream_options": {"include_usage": True}}
            for user, fields in ((name, wants), (f"{name}/beside", wants), (name, {"stream": True}), (name, {})):
                words, told = await ask(running, "paid", user, **fields)
                if not fields and "NaN" in usage:
                    assert words == 0  # it is no JSON: nothing of it is delivered
                    continue
                assert (words, bool(told)) == (WORDS, fields != {"stream": True}), user
                assert all(map(is_ours, told[-1:])), (user, told)
                assert await booked(running) == ("characters", WORDS, WORDS), user
                charged += WORDS
        assert await spent(running) == charged


@pytest.mark.parametrize("fields", [{"stream": True, "stream_options": {"include_usage": True}}, {}], ids=str)
async def test_a_servers_nonsense_is_not_shown_either(tmp_path: Path, fields: dict[str, Any]) -> None:
    async with backend(odd) as own, road(tmp_path, own.base_url) as running:
        for name in NONSENSE.keys() - {"noughts", "NaN", "infinite"}:
            words, told = await ask(running, "m", name, **fields)
            assert (words, list(map(is_ours, told))) == (WORDS, [True]), (name, told)
            assert (await booked(running))[1] == WORDS
