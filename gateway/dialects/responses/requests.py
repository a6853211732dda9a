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
    "background": "background answers are not supported; leave it out",
    "conversation": "conversations are not stored here; use previous_response_id",
    "prompt": "prompt templates are not stored here; send the input itself",
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
    body = decode(_decoder, raw)
    for name, remedy in _ELSEWHERE.items():
        if getattr(body, name):
            raise FeatureUnsupported(f"{name}: {remedy}", param=name)
    if not body.input and not body.instructions and not body.previous_response_id:
        raise RequestInvalid(
            "input: missing; send text or items", param="input", code="missing_required_parameter"
        )
    own_items = body.input if isinstance(body.input, list) else [_said_by_user(body.input)]
    _check_ids(own_items)
    return _question(body, own_items, own_items)


def with_items(
    question: ResponsesQuestion, earlier: list[Item], own_items: list[Item], label: Privacy
) -> ResponsesQuestion:
    """Return the question after earlier items, with its references resolved, under that label."""
    body = question.asked
    if label != question.label:
        extras = msgspec.structs.replace(body.millrace or Extras(), privacy=label)
        body = msgspec.structs.replace(body, millrace=extras)
    return _question(body, [*earlier, *own_items], own_items)


def _check_ids(items: list[Item]) -> None:
    """Raises RequestInvalid for ids that are not strings: later requests refer to items by their ids."""
    for at, item in enumerate(items):
        if not isinstance(item.get("id"), str | None):
            field = f"input[{at}].id"
            raise RequestInvalid(f"{field}: a string is expected", param=field, code="invalid_value")


def _said_by_user(text: str) -> Item:
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}


def _question(responses_request: ResponsesRequest, items: list[Item], own_items: list[Item]) -> ResponsesQuestion:
    own_tools = ((f"tools[{at}]", tool) for at, tool in enumerate(responses_request.tools or ()))
    tools = read_tools(chain(own_tools, tools_within(items)))
    messages = _instructions(responses_request, tools) + messages_of(items, tools)
    chat: Json = {"model": responses_request.model, "messages": messages or [{"role": "user", "content": ""}]}
    chat |= _tools(responses_request, tools) | _sampling(responses_request) | _format(responses_request)
    if responses_request.stream:
        chat |= {"stream": True, "stream_options": {"include_usage": True}}
    body = msgspec.json.encode(chat)
    request = read_request("chat", body)
    return ResponsesQuestion(
        "chat",
        request,
        body,
        warning=tools.warning,
        asked=responses_request,
        own_items=tuple(own_items),
        tools=tools,
    )


def _instructions(responses_request: ResponsesRequest, tools: Toolbox) -> list[Json]:
    if isinstance(responses_request.instructions, list):
        return messages_of(responses_request.instructions, tools, "instructions")
    return (
        [{"role": "system", "content": responses_request.instructions}] if responses_request.instructions else []
    )


def _sampling(responses_request: ResponsesRequest) -> Json:
    fields: Json = {
        "max_tokens": responses_request.max_output_tokens,
        "temperature": responses_request.temperature,
        "top_p": responses_request.top_p,
        "logprobs": True if responses_request.wants_logprobs else None,
        "top_logprobs": responses_request.top_logprobs if responses_request.wants_logprobs else None,
        "reasoning_effort": responses_request.reasoning.effort if responses_request.reasoning else None,
        "verbosity": responses_request.text.verbosity if responses_request.text else None,
        "service_tier": responses_request.service_tier,
        "user": responses_request.user,
        "safety_identifier": responses_request.safety_identifier,
        "prompt_cache_key": responses_request.prompt_cache_key,
        "millrace": responses_request.millrace,
        "provider": responses_request.provider,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _tools(responses_request: ResponsesRequest, tools: Toolbox) -> Json:
    choice = responses_request.tool_choice
    if not tools.functions:
        if tools.left_out and choice not in (None, "auto", "none"):
            raise FeatureUnsupported(f"tool_choice: {tools.warning}", param="tool_choice")
        return {}
    chosen: Json = {"tools": tools.functions}
    if choice is not None:
        chosen |= _choice(choice, tools)
    if responses_request.parallel_tool_calls is not None:
        chosen["parallel_tool_calls"] = responses_request.parallel_tool_calls
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


def _format(responses_request: ResponsesRequest) -> Json:
    text_format = (responses_request.text and responses_request.text.format) or TextFormat()
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
