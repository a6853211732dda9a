"""The other APIs before our own cluster with its demo model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.clients.late_import import late_import
from tests.clusters import DEMO_MODEL
from tests.gateways import Gateway, running_gateway

if TYPE_CHECKING:
    import anthropic
    import ollama
else:
    anthropic = late_import("anthropic")
    ollama = late_import("ollama")

MODEL = DEMO_MODEL.name
USER = {"role": "user", "content": "Once upon a time"}


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    folder: Path = tmp_path_factory.mktemp("cluster")
    with running_gateway(folder, nodes=1) as gateway:
        yield gateway


def test_every_api_gets_the_same_answer(gateway: Gateway) -> None:
    chat = gateway.openai().chat.completions.create(
        model=MODEL,
        messages=[USER],  # type: ignore[list-item]
        max_tokens=12,
        temperature=0,
    )
    said = chat.choices[0].message.content
    assert said
    assert chat.usage
    response = gateway.openai().responses.create(
        model=MODEL, input=str(USER["content"]), max_output_tokens=12, temperature=0
    )
    assert response.output_text == said
    direct = anthropic.DefaultHttpxClient(trust_env=False)
    key = gateway.api_key
    with anthropic.Anthropic(base_url=gateway.root, api_key=key, max_retries=0, http_client=direct) as client:
        asked = {"model": MODEL, "messages": [USER]}
        with client.messages.stream(**asked, max_tokens=12, extra_body={"temperature": 0}) as stream:  # type: ignore[arg-type]
            assert "".join(stream.text_stream) == said
            assert stream.get_final_message().usage.output_tokens == chat.usage.completion_tokens
        counted = client.messages.count_tokens(**asked)  # type: ignore[arg-type]
        assert counted.input_tokens == chat.usage.prompt_tokens
    headers = {"Authorization": f"Bearer {key}"}
    with ollama.Client(gateway.root, headers=headers, trust_env=False) as own:
        parts = own.chat(MODEL, [USER], stream=True, options={"temperature": 0, "num_predict": 12})
        assert "".join(part.message.content or "" for part in parts) == said
        assert own.show(MODEL).capabilities
