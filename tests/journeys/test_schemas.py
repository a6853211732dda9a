"""Answers of a given shape, as the official client asks our own cluster for them."""

import json
from typing import Any

import openai
import pytest
from jsonschema import Draft202012Validator

from tests.gateways import Gateway
from tests.journeys.test_openai_client import MODEL, QUESTION

PLACE: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 20}, "depth_m": {"type": "integer", "maximum": 99}},
    "required": ["name", "depth_m"],
    "additionalProperties": False,
}


def shape(schema: dict[str, Any]) -> Any:
    return {"type": "json_schema", "json_schema": {"name": "place", "schema": schema, "strict": True}}


def test_a_schema_is_kept_to(gateway: Gateway) -> None:
    client = gateway.openai()
    whole = client.chat.completions.create(
        model=MODEL, messages=QUESTION, response_format=shape(PLACE), max_tokens=200, temperature=1.2, seed=4
    )
    assert whole.choices[0].finish_reason == "stop"
    Draft202012Validator(PLACE).validate(json.loads(whole.choices[0].message.content or ""))
    stream = client.chat.completions.create(
        model=MODEL,
        messages=QUESTION,
        response_format=shape(PLACE),
        max_tokens=200,
        temperature=1.2,
        seed=4,
        stream=True,
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
    assert text == whole.choices[0].message.content


def test_what_cannot_be_had_is_refused_by_name(gateway: Gateway) -> None:
    client = gateway.openai()
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(
            model=MODEL, messages=QUESTION, response_format=shape({"type": "frob"}), max_tokens=9
        )
    assert refused.value.param == "response_format"
    # The demo model's template has no place for tools.
    with pytest.raises(openai.APIStatusError) as lacking:
        client.chat.completions.create(
            model=MODEL, messages=QUESTION, tools=[{"type": "function", "function": {"name": "f"}}], max_tokens=9
        )
    assert 400 <= lacking.value.status_code < 500
    assert lacking.value.param == "tools"
