"""A Responses request becomes a chat request."""

from collections.abc import Callable

import msgspec

from gateway.dialects.base import Question
from gateway.dialects.responses.items import Json, messages_of
from gateway.dialects.responses.shapes import Item, ResponsesRequest, TextFormat, Tool
from gateway.errors import FeatureUnsupported, RequestInvalid
from gateway.openai import Extras, read_request
from gateway.openai.reading import decode
from gateway.responses.store import StoredResponse
from gateway.settings.base import Privacy

_decoder = msgspec.json.Decoder(ResponsesRequest)
_ELSEWHERE = {
    "background": "answers are given at once here; leave it out",
    "conversation": "conversations are not kept here; use previous_response_id",
    "prompt": "prompt templates are not kept here; send the input itself",
}


class ResponsesQuestion(Question, frozen=True, kw_only=True):
    """`own_items` is the request's own input; with what is stored before it, it became the chat.

    `keep` takes the finished response, where it is to be stored, of the given `owner` under the label `privacy`.
    """

    asked: ResponsesRequest
    own_items: tuple[Item, ...] = ()
    owner: str = ""
    privacy: Privacy = "public"
    keep: Callable[[StoredResponse], None] | None = None

    @property
    def label(self) -> Privacy:
        """The request's own; its key may have a more private one."""
        extras = self.asked.millrace
        return (extras and extras.privacy) or "public"


def read_responses(raw: bytes) -> ResponsesQuestion:
    """POST /v1/responses as lanes take it, without what is stored. Raises RequestInvalid, FeatureUnsupported."""
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
    """The same question behind earlier items, with its references looked up, under that label."""
    asked = question.asked
    if label != question.label:
        extras = msgspec.structs.replace(asked.millrace or Extras(), privacy=label)
        asked = msgspec.structs.replace(asked, millrace=extras)
    return _question(asked, [*earlier, *own_items], own_items)


def _check_ids(items: list[Item]) -> None:
    """Items are found again by their ids."""
    for at, item in enumerate(items):
        if not isinstance(item.get("id"), str | None):
            field = f"input[{at}].id"
            raise RequestInvalid(f"{field}: a string is expected", param=field, code="invalid_value")


def _said_by_user(text: str) -> Item:
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}


def _question(asked: ResponsesRequest, items: list[Item], own_items: list[Item]) -> ResponsesQuestion:
    messages = _instructions(asked) + messages_of(items)
    chat: Json = {"model": asked.model, "messages": messages or [{"role": "user", "content": ""}]}
    chat |= _tools(asked) | _sampling(asked) | _format(asked)
    if asked.stream:
        chat |= {"stream": True, "stream_options": {"include_usage": True}}
    body = msgspec.json.encode(chat)
    request = read_request("chat", body)
    return ResponsesQuestion("chat", request, body, asked=asked, own_items=tuple(own_items))


def _instructions(asked: ResponsesRequest) -> list[Json]:
    if isinstance(asked.instructions, list):
        return messages_of(asked.instructions, "instructions")
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


def _tools(asked: ResponsesRequest) -> Json:
    if not asked.tools:
        return {}
    tools = [_tool(tool, f"tools[{at}]") for at, tool in enumerate(asked.tools)]
    chosen: Json = {"tools": tools}
    if asked.tool_choice is not None:
        chosen |= _choice(asked.tool_choice, tools)
    if asked.parallel_tool_calls is not None:
        chosen["parallel_tool_calls"] = asked.parallel_tool_calls
    return chosen


def _tool(tool: Tool, field: str) -> Json:
    if tool.type != "function":
        text = f"{field}: {tool.type[:80]} runs at OpenAI; only tools of type function can be called here"
        raise FeatureUnsupported(text, param=f"{field}.type")
    if tool.name is None:
        raise RequestInvalid(f"{field}.name: missing", param=f"{field}.name", code="missing_required_parameter")
    function: Json = {"name": tool.name, "parameters": tool.parameters or {"type": "object", "properties": {}}}
    more = {"description": tool.description, "strict": tool.strict}
    return {"type": "function", "function": function | {k: v for k, v in more.items() if v is not None}}


def _choice(choice: str | Json, tools: list[Json]) -> Json:
    """How tools are chosen; some of them alone where only these are allowed."""
    if isinstance(choice, str):
        return {"tool_choice": choice}
    if choice.get("type") == "function":
        return {"tool_choice": {"type": "function", "function": {"name": choice.get("name")}}}
    if choice.get("type") != "allowed_tools":
        text = "tool_choice: a mode, a function or allowed_tools is expected; other tools run at OpenAI"
        raise FeatureUnsupported(text, param="tool_choice")
    listed = choice.get("tools")
    names = {one.get("name") for one in listed if isinstance(one, dict)} if isinstance(listed, list) else set()
    allowed = [tool for tool in tools if tool["function"]["name"] in names]
    if not allowed:
        raise RequestInvalid("tool_choice.tools: names none of the tools", param="tool_choice.tools")
    return {"tools": allowed, "tool_choice": choice.get("mode", "auto")}


def _format(asked: ResponsesRequest) -> Json:
    wanted = (asked.text and asked.text.format) or TextFormat()
    if wanted.type == "text":
        return {}
    if wanted.type == "json_object":
        return {"response_format": {"type": "json_object"}}
    if wanted.schema is None:
        raise RequestInvalid("text.format.schema: missing", param="text.format.schema")
    described: Json = {"name": wanted.name or "answer", "schema": wanted.schema}
    more = {"description": wanted.description, "strict": wanted.strict}
    described |= {name: value for name, value in more.items() if value is not None}
    return {"response_format": {"type": "json_schema", "json_schema": described}}
