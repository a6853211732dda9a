"""Pool servers with strict chat templates answer what coding agents send: it is folded after their refusal."""

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jinja2
import pytest

from gateway.dialects.openai import read_request
from gateway.errors import FirstByteLate
from gateway.lanes.base import Call
from tests.gateway.http.edges import Answers, Writer, backend, edge, question, whole

pytestmark = pytest.mark.anyio

Json = dict[str, Any]

TEMPLATE = Path(__file__).parents[2] / "fixtures" / "strict_chat_template.jinja"
# As the servers write it, with the status that each has for it.
LLAMA_SERVER = (
    "\n------------\nWhile executing CallExpression at line 85, column 32 in source:\nError: Jinja Exception: {}"
)
REFUSALS: dict[str, tuple[bytes, Callable[[str], Json]]] = {
    "llama-server": (b"500 Internal Server Error", lambda said: _error(LLAMA_SERVER.format(said), "server_error")),
    "llama-server since b8000": (b"400 Bad Request", lambda said: _error(LLAMA_SERVER.format(said), "invalid")),
    "vLLM": (b"400 Bad Request", lambda said: _error(said, "BadRequestError")),
    "mlx-lm": (b"404 Not Found", lambda said: {"error": said}),
}
AGENT: list[Json] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "Hi."}]},
    {"role": "developer", "content": "The folder is empty."},
    {
        "role": "assistant",
        "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
    },
    {"role": "tool", "tool_call_id": "c", "content": "done"},
    {"role": "user", "content": "Go on."},
]
PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}


def _error(message: str, kind: str) -> Json:
    return {"error": {"code": 400, "message": message, "type": kind}}


def _raise(said: str) -> None:
    raise jinja2.TemplateError(said)


def _text(message: Json) -> str:
    """Servers join parts of text themselves, and put a mark in a picture's place."""
    content = message.get("content") or ""
    parts = [{"text": content}] if isinstance(content, str) else content
    return "".join(part.get("text", "<picture>") for part in parts)


def server(rules: str, kind: str) -> Answers:
    """Answers with the prompt that its template makes, or with the template's error."""
    environment = jinja2.Environment()
    environment.globals["raise_exception"] = _raise
    template = environment.from_string(TEMPLATE.read_text())
    status, written = REFUSALS[kind]

    async def answer(body: bytes, writer: Writer) -> None:
        messages = [message | {"content": _text(message)} for message in json.loads(body)["messages"]]
        try:
            said = template.render(messages=messages, rules=rules, add_generation_prompt=True)
        except jinja2.TemplateError as error:
            writer.write(whole(json.dumps(written(str(error))).encode(), status))
            return
        choice = {"index": 0, "message": {"role": "assistant", "content": said}, "finish_reason": "stop"}
        writer.write(whole(json.dumps({"id": "x", "choices": [choice]}).encode()))

    return answer


def prompt(*turns: tuple[str, str]) -> str:
    text = "".join(f"<|im_start|>{role}\n{content}<|im_end|>\n" for role, content in turns)
    return text + "<|im_start|>assistant\n"


ASKED = ("user", "Hi.\n\nThe folder is empty.")
CALLED = (("assistant", 'f"{}"'), ("tool", "done"))
GO_ON = ("user", "Go on.")


@pytest.mark.parametrize(
    ("kind", "rules", "expected"),
    [
        ("vLLM", "qwen", prompt(("system", "Be brief."), ASKED, *CALLED, GO_ON)),
        ("mlx-lm", "qwen", prompt(("system", "Be brief."), ASKED, *CALLED, GO_ON)),
        ("llama-server", "mistral", prompt(("system", "Be brief."), ASKED, *CALLED, ("assistant", "OK."), GO_ON)),
        (
            "llama-server since b8000",
            "gemma",
            prompt(("user", f"Be brief.\n\n{ASKED[1]}"), *CALLED, ("assistant", "OK."), GO_ON),
        ),
    ],
)
async def test_what_a_servers_template_refuses_is_folded(
    tmp_path: Path, kind: str, rules: str, expected: str
) -> None:
    async with backend(server(rules, kind)) as desk, edge(tmp_path, desk.base_url) as running:
        answered = await running.ask(messages=AGENT, temperature=0.5)
        assert answered.status == 200, answered.content
        assert json.loads(answered.content)["choices"][0]["message"]["content"] == expected
        sent = json.loads(desk.requests[-1])
        assert (sent["model"], sent["temperature"]) == ("m", 0.5)
        # The request was at fault, not the server.
        assert running.services.health.of("pool:first").breakers.of("m").failures_in_row == 0


async def test_a_server_that_takes_the_messages_gets_them_as_they_came(tmp_path: Path) -> None:
    messages = [
        {"role": "system", "content": "A"},
        {"role": "user", "content": "B"},
        {"role": "system", "content": "C"},
    ]
    async with backend(server("none", "vLLM")) as desk, edge(tmp_path, desk.base_url) as running:
        assert (await running.ask(messages=messages)).status == 200
        assert [json.loads(body)["messages"] for body in desk.requests] == [messages]


async def test_pictures_stay_where_messages_are_joined(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": [PICTURE]}, {"role": "system", "content": "C"}]
    async with backend(server("qwen", "vLLM")) as desk, edge(tmp_path, desk.base_url) as running:
        answered = await running.ask(messages=messages)
        assert json.loads(answered.content)["choices"][0]["message"]["content"] == prompt(("user", "<picture>C"))


async def test_what_no_folding_helps_is_the_requests_fault(tmp_path: Path) -> None:
    messages = [{"role": "assistant", "content": "A"}, {"role": "developer", "content": "B"}]
    async with backend(server("mistral", "llama-server")) as desk, edge(tmp_path, desk.base_url) as running:
        refused = await running.ask(messages=messages)
        assert (refused.status, refused.error["param"]) == (400, "messages")
        assert "roles must alternate" in refused.error["message"]
        assert [json.loads(body)["messages"] for body in desk.requests] == [
            messages,
            [messages[0], {"role": "user", "content": "B"}],
        ]
        assert running.services.health.of("pool:first").breakers.of("m").failures_in_row == 0


async def test_other_errors_pass_as_before(tmp_path: Path) -> None:
    async def too_long(body: bytes, writer: Writer) -> None:
        writer.write(whole(b'{"error": {"message": "the prompt is too long", "code": "x"}}', b"400 Bad Request"))

    async with backend(too_long) as desk, edge(tmp_path, desk.base_url) as running:
        refused = await running.ask(messages=AGENT)
        assert (refused.status, refused.error["message"]) == (400, "the prompt is too long")
        assert len(desk.requests) == 1


async def test_folded_messages_have_only_the_time_that_is_left(tmp_path: Path) -> None:
    status, written = REFUSALS["vLLM"]
    refusal = whole(json.dumps(written("roles must alternate")).encode(), status)

    async def refuse_late(body: bytes, writer: Writer) -> None:
        await asyncio.sleep(1.6)
        writer.write(refusal)

    raw = question(messages=AGENT)
    async with backend(refuse_late) as desk, edge(tmp_path, desk.base_url) as running:
        lane = running.services.lanes["pool"]
        (offer,) = lane.offers("m")
        began_s = time.monotonic()
        with pytest.raises(FirstByteLate):
            await lane.open(Call("req_1", "chat", read_request("chat", raw), raw, "ann"), offer, 2.0)
        assert 2.0 <= time.monotonic() - began_s < 1.6 + 2.0
        assert len(desk.requests) == 2
