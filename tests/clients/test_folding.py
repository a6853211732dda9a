"""What coding agents send is answered by models whose chat templates are strict: over HTTP, by our own cluster.

The model's template enforces the rules of real ones. The expected prompts are written by hand and counted with the
model's tokenizer, so that an answer shows which prompt the model had.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.models.text import TextCodec
from tests.clusters import DEMO_MODEL
from tests.gateways import Gateway, running_gateway

Json = dict[str, Any]

MODEL = "strict"
TEMPLATE = Path(__file__).parents[1] / "fixtures" / "strict_chat_template.jinja"
USER = {"role": "user", "content": "Once upon a time"}
AGENT: list[Json] = [
    {"role": "system", "content": "Be brief."},
    {"role": "developer", "content": "Use tools."},
    {"role": "user", "content": [{"type": "text", "text": "Hi."}, {"type": "text", "text": "Read it."}]},
    {"role": "system", "content": "The folder is empty."},
    {"role": "user", "content": "Now."},
]
FUNCTION = {"name": "read", "arguments": "{}"}
CALLING: list[Json] = [
    {"role": "user", "content": "Read it."},
    {
        "role": "assistant",
        "content": "Yes.",
        "tool_calls": [{"id": "c", "type": "function", "function": FUNCTION}],
    },
    {"role": "tool", "tool_call_id": "c", "content": "empty"},
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "And now?"},
]
ASKED = "Hi.Read it.\n\nThe folder is empty.\n\nNow."
CALLED = [("user", "Read it."), ("assistant", "Yes.read{}"), ("tool", "empty")]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("models") / MODEL
    shutil.copytree(DEMO_MODEL, folder)
    shutil.copy(TEMPLATE, folder / "chat_template.jinja")
    return folder


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Iterator[Gateway]:
    with running_gateway(tmp_path_factory.mktemp("strict"), model=model, nodes=1) as gateway:
        yield gateway


@pytest.fixture(scope="module")
def codec(model: Path) -> TextCodec:
    return TextCodec(model)


def count(codec: TextCodec, *turns: tuple[str, str]) -> int:
    text = "".join(f"<|im_start|>{role}\n{content}<|im_end|>\n" for role, content in turns)
    return len(codec.encode_text(text + "<|im_start|>assistant\n"))


def ask(gateway: Gateway, messages: list[Json], rules: str) -> Json:
    options = {"chat_template_kwargs": {"rules": rules}, "max_tokens": 4, "temperature": 0}
    answer = gateway.http().post("/v1/chat/completions", json={"model": MODEL, "messages": messages} | options)
    answered: Json = answer.json()
    assert answer.status_code == 200, answered
    return answered


@pytest.mark.parametrize(
    ("rules", "turns"),
    [
        ("qwen", [("system", "Be brief.\n\nUse tools."), ("user", ASKED)]),
        ("mistral", [("system", "Be brief.\n\nUse tools."), ("user", ASKED)]),
        ("llama", [("system", "Be brief.\n\nUse tools."), ("user", ASKED)]),
        ("gemma", [("user", f"Be brief.\n\nUse tools.\n\n{ASKED}")]),
    ],
)
def test_what_a_template_refuses_is_folded(
    gateway: Gateway, codec: TextCodec, rules: str, turns: list[tuple[str, str]]
) -> None:
    assert ask(gateway, AGENT, rules)["usage"]["prompt_tokens"] == count(codec, *turns)


def test_a_message_behind_a_tools_result_is_folded(gateway: Gateway, codec: TextCodec) -> None:
    """Only where roles must alternate the assistant is given a turn between them."""
    ending = ("user", "Be brief.\n\nAnd now?")
    for rules, turns in (("qwen", [*CALLED, ending]), ("mistral", [*CALLED, ("assistant", "OK."), ending])):
        assert ask(gateway, CALLING, rules)["usage"]["prompt_tokens"] == count(codec, *turns)


def test_a_template_that_takes_the_messages_gets_them_as_they_are(gateway: Gateway, codec: TextCodec) -> None:
    as_sent = [
        ("system", "Be brief."),
        ("system", "Use tools."),
        ("user", "Hi.Read it."),
        ("system", "The folder is empty."),
        ("user", "Now."),
    ]
    assert ask(gateway, AGENT, "none")["usage"]["prompt_tokens"] == count(codec, *as_sent)


def test_other_apis_are_folded_too(gateway: Gateway, codec: TextCodec) -> None:
    """Codex sends developer messages, Claude Code system messages behind the user's."""
    client = gateway.http()
    expected = count(codec, ("system", "Be brief."), ("user", "Hi.\n\nThe folder is empty."))
    items = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": "Hi."},
        {"role": "developer", "content": "The folder is empty."},
    ]
    asked = {"model": MODEL, "input": items, "max_output_tokens": 4}
    response = client.post("/v1/responses", json=asked).raise_for_status().json()
    assert response["usage"]["input_tokens"] == expected
    turns = [{"role": "user", "content": "Hi."}, {"role": "system", "content": "The folder is empty."}]
    asked = {"model": MODEL, "system": "Be brief.", "messages": turns}
    message = client.post("/v1/messages", json=asked | {"max_tokens": 4}).raise_for_status().json()
    assert message["usage"]["input_tokens"] == expected
    counted = client.post("/v1/messages/count_tokens", json=asked).raise_for_status().json()
    assert counted["input_tokens"] == expected


def test_what_no_folding_helps_is_refused_in_the_templates_words(gateway: Gateway) -> None:
    messages = [{"role": "assistant", "content": "Hello."}, {"role": "user", "content": "Hi."}]
    asked = {"model": MODEL, "messages": messages, "chat_template_kwargs": {"rules": "mistral"}}
    refused = gateway.http().post("/v1/chat/completions", json=asked)
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "messages"
    assert "roles must alternate" in refused.json()["error"]["message"]
