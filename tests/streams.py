"""Streams of chunks as their reader has them in the end."""

import json
from typing import Any

from tests.openai_schemas import check


def said(content: bytes) -> Any:
    """Every choice put together, and what was used: one answer in all its chunks, without gateways' own words."""
    events = content.decode().strip().split("\n\n")
    assert events.pop() == "data: [DONE]"
    chunks = [json.loads(event.removeprefix("data: ")) for event in events]
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks}) == 1
    assert "millrace" not in content.decode()
    choices: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        for choice in chunk["choices"]:
            if "delta" in choice:
                check("CreateChatCompletionStreamResponse", chunk)
            _put_together(choices.setdefault(choice["index"], {"finish": None, "logprobs": []}), choice)
    return choices, [chunk["usage"] for chunk in chunks if chunk.get("usage")]


def _put_together(whole: dict[str, Any], choice: dict[str, Any]) -> None:
    assert whole["finish"] is None, "nothing comes behind the end"
    whole["finish"] = choice["finish_reason"]
    if choice.get("logprobs"):
        whole["logprobs"].append(choice["logprobs"])
    said = choice.get("delta", {"text": choice.get("text")})
    for name, text in said.items():
        if isinstance(text, str):
            whole[name] = whole.get(name, "") + text
    for part in said.get("tool_calls") or ():
        key = f"call {part['index']}"
        function = part["function"]
        whole[key] = whole.get(key, "") + function.get("name", "") + function["arguments"]
