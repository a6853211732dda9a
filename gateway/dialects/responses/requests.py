"""Translates a Responses request to a chat request."""

from collections.abc import Callable
from itertools import chain

import msgspec

from gateway.dialects.base import Question
from gateway.dialects.openai import Extras, read_request
from gateway.dialects.openai.reader import decode
from gateway.dialects.responses.items import Json, messages_of, tools_within
from gateway.dialects.responses.shapes import Item, ResponsesRequest, TextFormat
from gateway.dialects.responses.tools import Toolbox, ToolName, read_tools
from gateway.dialects.stored_responses.store import StoredResponse
from gateway.errors import FeatureUnsupported
from gateway.settings.base import Privacy
from runtime.errors import RequestInvalid

_decoder = msgspec.json.Decoder(ResponsesRequest)
_ELSEWHERE = {
    "background": "answers are given at once here; leave it out",
    "conversation": "conversations are not kept here; use previous_response_id",
    "prompt": "prompt templates are not kept here; send the input itself",
}


class ResponsesQuestion(Question, frozen=True, kw_only=True):
    """`own_items` is the request's own input; the chat consists of it and of the stored items before it.

    `tools` are the functions that the model may call. `keep` stores the finished response, if requested, for this
    `owner` under the label `privacy`.
    """

    asked: ResponsesRequest
    own_items: tuple[Item, ...] = ()
    tools: Toolbox = msgspec.field(default_factory=Toolbox)
    owner: str = ""
    privacy: Privacy = "public"
    keep: Callable[[StoredResponse], None] | None = None

    @property
    def label(self) -> Privacy:
        """Return the request's own label; its key may have a more private one."""
        extras = self.asked.millrace
        return (extras and extras.privacy) or "public"


def read_responses(raw: bytes) -> ResponsesQuestion:
    """Translate POST /v1/responses for lanes, without stored items. Raises RequestInvalid, FeatureUnsupported."""
    asked = decode(_decoder, raw)
    for name, remedy in _ELSEWHERE.items():
        if getattr(asked, name):
            raise FeatureUnsupported(f"{name}: {remedy}", param=name)
    if not asked.input and not asked.instructions and not asked.previous_response_id:
        raise RequestInvalid(
            "input: missing; send text or items", param="input", code="missing_required_parameter"
        )
    own_items = asked.input if isinstance(asked.input, list) else [_said_by_user(asked.input)]
    _check_ids(own_items)
    return _question(asked, own_items, own_items)


def with_items(
    question: ResponsesQuestion, earlier: list[Item], own_items: list[Item], label: Privacy
) -> ResponsesQuestion:
    """Return the question after earlier items, with its references resolved, under that label."""
    asked = question.asked
    if label != question.label:
        extras = msgspec.structs.replace(asked.millrace or Extras(), privacy=label)
        asked = msgspec.structs.replace(asked, millrace=extras)
    return _question(asked, [*earlier, *own_items], own_items)


def _check_ids(items: list[Item]) -> None:
    """Raises RequestInvalid for ids that are not strings: later requests refer to items by their ids."""
    for at, item in enumerate(items):
        if not isinstance(item.get("id"), str | None):
            field = f"input[{at}].id"
            raise RequestInvalid(f"{field}: a string is expected", param=field, code="invalid_value")


def _said_by_user(text: str) -> Item:
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}


def _question(asked: ResponsesRequest, items: list[Item], own_items: list[Item]) -> ResponsesQuestion:
    own_tools = ((f"tools[{at}]", tool) for at, tool in enumerate(asked.tools or ()))
    tools = read_tools(chain(own_tools, tools_within(items)))
    messages = _instructions(asked, tools) + messages_of(items, tools)
    chat: Json = {"model": asked.model, "messages": messages or [{"role": "user", "content": ""}]}
    chat |= _tools(asked, tools) | _sampling(asked) | _format(asked)
    if asked.stream:
        chat |= {"stream": True, "stream_options": {"include_usage": True}}
    body = msgspec.json.encode(chat)
    request = read_request("chat", body)
    return ResponsesQuestion(
        "chat", request, body, warning=tools.warning, asked=asked, own_items=tuple(own_items), tools=tools
    )


def _instructions(asked: ResponsesRequest, tools: Toolbox) -> list[Json]:
    if isinstance(asked.instructions, list):
        return messages_of(asked.instructions, tools, "instructions")
    return [{"role": "system", "content": asked.instructions}] if asked.instructions else []


def _sampling(asked: ResponsesRequest) -> Json:
    fields: Json = {
        "max_tokens": asked.max_output_tokens,
        "temperature": asked.temperature,
        "top_p": asked.top_p,
        "logprobs": True if asked.wants_logprobs else None,
        "top_logprobs": asked.top_logprobs if asked.wants_logprobs else None,
        "reasoning_effort": asked.reasoning.effort if asked.reasoning else None,
        "verbosity": asked.text.verbosity if asked.text else None,
        "service_tier": asked.service_tier,
        "user": asked.user,
        "safety_identifier": asked.safety_identifier,
        "prompt_cache_key": asked.prompt_cache_key,
        "millrace": asked.millrace,
        "provider": asked.provider,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _tools(asked: ResponsesRequest, tools: Toolbox) -> Json:
    choice = asked.tool_choice
    if not tools.functions:
        if tools.left_out and choice not in (None, "auto", "none"):
            raise FeatureUnsupported(f"tool_choice: {tools.warning}", param="tool_choice")
        return {}
    chosen: Json = {"tools": tools.functions}
    if choice is not None:
        chosen |= _choice(choice, tools)
    if asked.parallel_tool_calls is not None:
        chosen["parallel_tool_calls"] = asked.parallel_tool_calls
    return chosen


def _choice(choice: str | Json, tools: Toolbox) -> Json:
    """Return the chat's `tool_choice`, and its `tools` if only some are allowed."""
    if isinstance(choice, str):
        return {"tool_choice": choice}
    if choice.get("type") in ("function", "custom"):
        return {"tool_choice": {"type": "function", "function": {"name": _chosen(choice, tools)}}}
    if choice.get("type") != "allowed_tools":
        text = "tool_choice: a mode, a function, a custom tool or allowed_tools is expected; others run at OpenAI"
        raise FeatureUnsupported(text, param="tool_choice")
    listed = choice.get("tools")
    names = {_chosen(one, tools) for one in listed if isinstance(one, dict)} if isinstance(listed, list) else set()
    allowed = [tool for tool in tools.functions if tool["function"]["name"] in names]
    if not allowed:
        raise RequestInvalid("tool_choice.tools: names none of the tools", param="tool_choice.tools")
    return {"tools": allowed, "tool_choice": choice.get("mode", "auto")}


def _chosen(choice: Json, tools: Toolbox) -> str:
    """Return the name of the function that an entry of the choice refers to."""
    name, namespace = choice.get("name"), choice.get("namespace")
    if not isinstance(name, str) or not isinstance(namespace, str | None):
        return ""
    return tools.function_name(ToolName(name, namespace, is_custom=choice.get("type") == "custom"))


def _format(asked: ResponsesRequest) -> Json:
    text_format = (asked.text and asked.text.format) or TextFormat()
    if text_format.type == "text":
        return {}
    if text_format.type == "json_object":
        return {"response_format": {"type": "json_object"}}
    if text_format.schema is None:
        raise RequestInvalid("text.format.schema: missing", param="text.format.schema")
    described: Json = {"name": text_format.name or "answer", "schema": text_format.schema}
    more = {"description": text_format.description, "strict": text_format.strict}
    described |= {name: value for name, value in more.items() if value is not None}
    return {"response_format": {"type": "json_schema", "json_schema": described}}
