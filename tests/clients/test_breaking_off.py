"""A backend that hangs up in the middle of an answer, as each API's own client sees it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import httpx
import pytest

from tests.clients.conftest import Served
from tests.clients.late_import import late_import
from tests.fakes.whole_api import BREAK_OFF, MODEL, NONSENSE

if TYPE_CHECKING:
    import anthropic
    import ollama
else:
    anthropic = late_import("anthropic")
    ollama = late_import("ollama")

USER = {"role": "user", "content": BREAK_OFF}


@pytest.fixture(autouse=True)
def _recovered(served: Served) -> Iterator[None]:
    """A backend that fails several times in a row gets a pause: each test leaves one that has done well again."""
    yield
    asked = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}]}
    assert served.gateway.http().post("/v1/chat/completions", json=asked).status_code == 200


def test_openais_responses_fail(served: Served) -> None:
    stream = served.gateway.openai().responses.create(model=MODEL, input=BREAK_OFF, stream=True)
    kinds = [event.type for event in stream]
    assert "response.output_text.delta" in kinds
    assert kinds[-2:] == ["error", "response.failed"]


def test_anthropics_stream_raises(served: Served) -> None:
    direct = anthropic.DefaultHttpxClient(trust_env=False)
    key, root = served.gateway.api_key, served.gateway.root
    with (
        anthropic.Anthropic(base_url=root, api_key=key, max_retries=0, http_client=direct) as client,
        client.messages.stream(model=MODEL, max_tokens=9, messages=[USER]) as stream,  # type: ignore[list-item]
    ):
        texts = iter(stream.text_stream)
        assert next(texts)
        with pytest.raises(anthropic.APIStatusError):
            list(texts)


def test_ollamas_stream_raises(served: Served) -> None:
    headers = {"Authorization": f"Bearer {served.gateway.api_key}"}
    with ollama.Client(served.gateway.root, headers=headers, trust_env=False) as client:
        parts = client.chat(MODEL, [USER], stream=True)
        assert next(parts).message
        with pytest.raises(ollama.ResponseError):
            list(parts)


@pytest.mark.parametrize("said", [BREAK_OFF, NONSENSE])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/responses", {}),
        ("/v1/messages", {"max_tokens": 9}),
        ("/api/chat", {"stream": False}),
    ],
)
def test_whole_answers_are_errors_with_a_status(
    served: Served, path: str, body: dict[str, object], said: str
) -> None:
    asked = {"input": said} if "responses" in path else {"messages": [{"role": "user", "content": said}]}
    answer: httpx.Response = served.gateway.http().post(path, json={"model": MODEL, **asked, **body})
    assert answer.status_code == 502, answer.text
    assert "error" in answer.json()
