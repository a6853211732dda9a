"""Other people's clients: langchain and llm, as they are."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest
from pydantic import BaseModel, SecretStr

from tests.clients.conftest import Served
from tests.clients.snippet_process import SnippetProcess
from tests.fakes.whole_api import FILLED, MODEL, TEXT

if TYPE_CHECKING:
    from langchain_openai import ChatOpenAI


class Weather(BaseModel):
    """The weather in a city."""

    city: str
    degrees: int


@pytest.fixture(params=[False, True], ids=["chat", "responses"])
def chat(served: Served, request: pytest.FixtureRequest) -> Iterator[ChatOpenAI]:
    # Each process that collects tests would import it, for a second, and one of them needs it.
    from langchain_openai import ChatOpenAI

    with httpx.Client(trust_env=False) as direct:
        yield ChatOpenAI(
            model=MODEL,
            base_url=served.gateway.base_url,
            api_key=SecretStr(served.gateway.api_key),
            max_retries=0,
            use_responses_api=request.param,
            http_client=direct,
        )


def test_langchain_invokes_and_streams(chat: ChatOpenAI) -> None:
    assert chat.invoke("Hi").text == TEXT
    assert "".join(part.text for part in chat.stream("Hi")) == TEXT


def test_langchain_calls_tools(chat: ChatOpenAI) -> None:
    from langchain_core.messages import HumanMessage, ToolMessage
    from langchain_core.tools import tool

    @tool
    def weather(city: str) -> str:
        """The weather in a city."""
        return f"sunny in {city}"

    able = chat.bind_tools([weather])
    question = HumanMessage("How is the weather in Paris?")
    called = able.invoke([question])
    call = called.tool_calls[0]
    assert (call["name"], call["args"]) == ("weather", FILLED)
    told = able.invoke([question, called, ToolMessage("sunny", tool_call_id=call["id"])])
    assert told.text == "It is sunny."


def test_langchain_fills_schemas(chat: ChatOpenAI) -> None:
    assert chat.with_structured_output(Weather).invoke("Hi") == Weather.model_validate(FILLED)


_LLM = """
import runpy
import sys

sys.argv = ["llm", *{words}]
runpy.run_module("llm", run_name="__main__", alter_sys=True)
"""


def test_llm_answers_from_the_command_line(served: Served, snippets: SnippetProcess, tmp_path: Path) -> None:
    model = {"model_id": "mill", "model_name": MODEL, "api_base": served.gateway.base_url, "api_key_name": "mill"}
    (tmp_path / "extra-openai-models.yaml").write_text(json.dumps([model]))
    (tmp_path / "keys.json").write_text(json.dumps({"mill": served.gateway.api_key}))
    environment = {"LLM_USER_PATH": str(tmp_path), "PATH": "", "HOME": str(tmp_path)}
    for more in ((), ("--no-stream",)):
        program = _LLM.format(words=["-m", "mill", "Hi", *more])
        code, printed, complained = snippets.run(program, environment, tmp_path, timeout_s=60)
        assert (code, printed.strip()) == (0, TEXT), complained
