"""The other APIs before our own cluster with its demo model."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
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


def test_ollamas_client_unloads_loads_lists_and_deletes_models(gateway: Gateway) -> None:
    gateway.cli("run", str(DEMO_MODEL), "--name", "coder", "--idle", "1h", "--precision", "fp32")
    key = gateway.cli("key", "create", "boss", "--admin").split()[-1]
    with ollama.Client(gateway.root, headers={"Authorization": f"Bearer {key}"}, trust_env=False) as own:
        loaded = {model.model: model.expires_at for model in own.ps().models}
        assert loaded.keys() == {MODEL, "coder"}
        left = loaded["coder"] - datetime.now(UTC)
        assert (3000 < left.total_seconds() <= 3600, loaded[MODEL].year) == (True, 9999)
        own.generate("coder", keep_alive=0)
        assert [model.model for model in own.ps().models] == [MODEL]
        assert {model.model for model in own.list().models} == {MODEL, "coder"}
        assert own.generate("coder", keep_alive="20m").done_reason == "load"
        (coder,) = [model for model in own.ps().models if model.model == "coder"]
        left = coder.expires_at - datetime.now(UTC)
        assert 1000 < left.total_seconds() <= 1200
        own.generate("coder", keep_alive=-1)
        assert [model.expires_at.year for model in own.ps().models] == [9999, 9999]
        own.delete("coder")
        assert [model.model for model in own.list().models] == [MODEL]
        with pytest.raises(ollama.ResponseError, match=r"cluster\.model") as refused:
            own.delete(MODEL)
        assert refused.value.status_code == 409
        with pytest.raises(ollama.ResponseError, match="not found") as refused:
            own.delete("coder")
        assert refused.value.status_code == 404
