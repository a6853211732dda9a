"""Text of a request and its answer: only of stored responses, and only for their owner."""

import json
from dataclasses import dataclass
from typing import Any

from gateway.console.access import Visitor
from gateway.dialects.responses.answer import response_id
from gateway.dialects.stored_responses.store import StoredResponse, owner_of
from runtime.errors import NotFound

TEXT_MAX = 20_000
"""Characters shown of one turn."""
TURNS_MAX = 50


@dataclass(frozen=True, slots=True)
class Turn:
    """A message of one side; `left_out` counts the characters not shown."""

    who: str
    text: str
    left_out: int = 0


async def stored_turns(visitor: Visitor, request_id: str) -> list[Turn] | None:
    """Return the turns; None if nothing is stored or it belongs to another user: not even admins can read it."""
    try:
        found = await visitor.services.responses.find(
            owner_of(visitor.caller), response_id(request_id.removeprefix("req_"))
        )
    except NotFound:
        return None
    return turns_of(found)


def turns_of(stored: StoredResponse) -> list[Turn]:
    """Return the items sent, then those received; only the newest if there are many."""
    items = [*json.loads(stored.input), *json.loads(stored.answer).get("output", ())]
    return [_turn(item) for item in items[-TURNS_MAX:]]


def _turn(item: dict[str, Any]) -> Turn:
    kind = item.get("type", "message")
    who, text = (str(item.get("role", "user")), _text(item.get("content"))) if kind == "message" else _other(item)
    return Turn(who, text[:TEXT_MAX], max(0, len(text) - TEXT_MAX))


def _other(item: dict[str, Any]) -> tuple[str, str]:
    """Return who and text of tool calls, tool output and reasoning."""
    match item.get("type"):
        case "function_call":
            return "calls a tool", f"{item.get('name', '')}({item.get('arguments', '')})"
        case "function_call_output":
            return "tool", _text(item.get("output"))
        case "reasoning":
            return "reasoning", _text(item.get("summary") or item.get("content"))
        case kind:
            return str(kind).replace("_", " "), ""


def _text(content: object) -> str:
    """Return the text; parts that are not text are named."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    return "\n".join(_part(part) for part in content if isinstance(part, dict))


def _part(part: dict[str, Any]) -> str:
    text = part.get("text", part.get("refusal"))
    return text if isinstance(text, str) else f"[{part.get('type', 'unknown')}]"
