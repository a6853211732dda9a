"""Counts where an upstream gives none."""

import json
from typing import Any

import pytest

from gateway.dialects.openai import Request, read_request
from gateway.dialects.openai.prompt_estimate import estimate_prompt
from gateway.lanes.choice import said_in
from gateway.lanes.token_bounds import tool_tokens_max
from runtime.errors import RequestInvalid

PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 400_000}}


def chat(**fields: Any) -> Request:
    body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]} | fields
    return read_request("chat", json.dumps(body).encode())


def test_a_pictures_bytes_are_not_text() -> None:
    with_picture = chat(messages=[{"role": "user", "content": [{"type": "text", "text": "Hi"}, PICTURE]}])
    assert 500 < estimate_prompt(with_picture) < 2000


def test_token_ids_are_counted_one_by_one() -> None:
    body = json.dumps({"model": "m", "prompt": [[1, 2, 3], [123456]]}).encode()
    assert estimate_prompt(read_request("completion", body)) == 4


@pytest.mark.parametrize(
    ("choice", "said"),
    [
        ({"delta": {"tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}}, "f{}"),
        ({"delta": {"function_call": {"arguments": "{}"}}}, "{}"),
        ({"message": {"content": "a", "reasoning_content": "b", "refusal": "c"}}, "acb"),
        ({"text": "a"}, "a"),
        ({"delta": {"role": "assistant", "content": None}}, ""),
        ({"delta": [1], "text": 7}, ""),
        (None, ""),
    ],
)
def test_all_that_was_generated_counts(choice: Any, said: str) -> None:
    assert said_in(choice) == said


def test_references_written_out_are_allowed_for() -> None:
    thing = {"type": "object", "description": "x" * 1000}
    properties = {name: {"$ref": "#/$defs/thing"} for name in "abcde"}
    function = {"name": "f", "parameters": {"$defs": {"thing": thing}, "properties": properties}}
    assert tool_tokens_max(chat(tools=[{"type": "function", "function": function}])) > 4000
    assert tool_tokens_max(chat()) == 0
    with pytest.raises(RequestInvalid) as refused:
        tool_tokens_max(chat(response_format={"type": "json_schema", "json_schema": {"x": ["y" * 2**21]}}))
    assert refused.value.param == "response_format"
