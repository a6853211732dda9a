"""Checks that types cannot express: fields that exclude or need each other. Each raises RequestInvalid."""

from typing import Any

from gateway.dialects.openai.fields import BIASES_MAX, INPUTS_MAX
from gateway.dialects.openai.generation import ChatRequest, CompletionRequest, Message
from gateway.dialects.openai.tasks import EmbeddingRequest
from runtime.errors import RequestInvalid

_TOKEN_DIGITS = 10


def check_embedding(request: EmbeddingRequest) -> None:
    """Raises RequestInvalid if inputs are of mixed kinds, too many or empty."""
    _check_one_kind(request.input, "input")
    inputs: list[str] | list[list[int]] = request.texts or request.token_ids
    if len(inputs) > INPUTS_MAX:
        text = f"input: {len(inputs)} inputs are more than {INPUTS_MAX}; send fewer at once"
        raise RequestInvalid(text, param="input", code="invalid_value")
    empty = next((at for at, one in enumerate(inputs) if not one), None)
    if empty is not None:
        raise RequestInvalid(f"input[{empty}]: must not be empty", param="input", code="invalid_value")


def check_completion(request: CompletionRequest) -> None:
    _check_stream_options(request)
    _check_one_kind(request.prompt, "prompt")
    _check_biases(request.logit_bias or {})


def check_chat(request: ChatRequest) -> None:
    """Raises RequestInvalid if fields contradict one another, or if a message, tool or format is malformed."""
    _check_stream_options(request)
    if request.top_logprobs and not request.logprobs:
        raise RequestInvalid("top_logprobs: only allowed with logprobs: true", param="top_logprobs")
    if request.max_tokens and request.max_completion_tokens not in (None, request.max_tokens):
        text = "max_completion_tokens: differs from max_tokens; send one of them"
        raise RequestInvalid(text, param="max_completion_tokens")
    for at, message in enumerate(request.messages):
        if not isinstance(message.content, str):
            _check_message(message, f"messages[{at}]")
    if request.tools:
        _check_tools(request.tools)
    if isinstance(request.tool_choice, dict):
        _check_choice(request.tool_choice, request.tools or [])
    if request.response_format:
        _check_format(request.response_format)
    if request.logit_bias:
        _check_biases(request.logit_bias)


def _check_stream_options(request: ChatRequest | CompletionRequest) -> None:
    if request.stream_options and not request.stream:
        raise RequestInvalid("stream_options: only allowed with stream: true", param="stream_options")


def _check_one_kind(parts: str | list[str | int | list[int]], field: str) -> None:
    if not parts:
        raise RequestInvalid(f"{field}: must not be empty", param=field, code="invalid_value")
    if len({type(part) for part in parts}) > 1:
        raise RequestInvalid(f"{field}: must be of one kind: text, token ids, or lists of them", param=field)


def _check_biases(biases: dict[str, float]) -> None:
    if len(biases) > BIASES_MAX:
        text = f"logit_bias: at most {BIASES_MAX} tokens can be biased"
        raise RequestInvalid(text, param="logit_bias", code="invalid_value")
    for token in biases:
        if not token.isascii() or not token.isdigit() or len(token) > _TOKEN_DIGITS:
            raise RequestInvalid(f"logit_bias: {token[:20]!r} is no token id", param="logit_bias")


def _check_message(message: Message, field: str) -> None:
    """Backends would read missing content as empty and answer anyway."""
    if message.content is None and message.role not in ("assistant", "function"):
        text = f"{field}.content: a {message.role} message needs content"
        raise RequestInvalid(text, param=f"{field}.content", code="missing_required_parameter")
    for at, part in enumerate(message.content if isinstance(message.content, list) else ()):
        if part.type == "text" and part.text is None:
            param = f"{field}.content[{at}].text"
            raise RequestInvalid(f"{param}: missing", param=param, code="missing_required_parameter")


def _check_tools(tools: list[dict[str, Any]]) -> None:
    for at, tool in enumerate(tools):
        if not isinstance(tool.get("type", "function"), str):
            raise _invalid(f"tools[{at}].type", "a string such as 'function' is expected")
        if tool.get("type", "function") == "function" and not _name(tool):
            raise _invalid(f"tools[{at}].function.name", "a function needs a name")
        _check_integers(f"tools[{at}]", tool)


def _check_choice(choice: dict[str, Any], tools: list[dict[str, Any]]) -> None:
    if choice.get("type", "function") == "function" and _name(choice) not in {_name(tool) for tool in tools}:
        raise _invalid("tool_choice", f"names {_name(choice)!r}, which is not among the tools")


def _check_format(response_format: dict[str, Any]) -> None:
    if response_format.get("type") != "json_schema":
        return
    described = response_format.get("json_schema")
    if not isinstance(described, dict):
        raise _invalid("response_format.json_schema", "an object with name and schema is expected")
    if not isinstance(described.get("schema", {}), dict):
        raise _invalid("response_format.json_schema.schema", "a JSON schema is expected")
    _check_integers("response_format.json_schema.schema", described.get("schema", {}))


def _check_integers(param: str, schema: Any) -> None:
    """Raises RequestInvalid for integers beyond 64 bits, which grammars and other programs cannot represent."""
    left = [schema]
    while left:
        value = left.pop()
        if isinstance(value, dict):
            left += value.values()
        elif isinstance(value, list):
            left += value
        elif isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise _invalid(param, "an integer in the schema does not fit into 64 bits; use a smaller one")


def _name(tool: dict[str, Any]) -> str:
    function = tool.get("function")
    name = function.get("name") if isinstance(function, dict) else None
    return name if isinstance(name, str) else ""


def _invalid(param: str, problem: str) -> RequestInvalid:
    return RequestInvalid(f"{param}: {problem}", param=param, code="invalid_value")
