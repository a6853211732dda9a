"""Converts an API call to the coordinator's requests: one for each prompt."""

from collections.abc import Iterator
from typing import Any

from cluster.errors import RequestInvalid
from cluster.generation import (
    ChatPrompt,
    GenerateRequest,
    Limits,
    Prompt,
    Resume,
    Sampling,
    TextPrompt,
    TokenPrompt,
)
from cluster.models.chat_format import ChatFormat
from cluster.models.tool_calls.parser_choice import listen
from gateway.dialects.openai import ChatRequest, CompletionRequest, GenerationRequest, Message
from gateway.lanes.base import Call
from gateway.lanes.cluster.tools import Tools, constraint_of, read_tools

_CHOICES_MAX = 128
# Very deep objects can be neither forwarded nor serialized.
_DEPTH_MAX = 100


def tools_of(call: Call) -> Tools:
    """Return the request's tools. Raises RequestInvalid, naming the field."""
    request = call.generation
    if not isinstance(request, ChatRequest):
        return Tools()
    _check_nesting(request)
    return read_tools(request)


def requests_of(
    call: Call, tools: Tools, form: ChatFormat, *, speculate: bool, resume: tuple[Resume, ...] = ()
) -> list[GenerateRequest]:
    """Return one request for each prompt of the call; `resume` has the known part of a single prompt's answer.

    Raises RequestInvalid, also for more choices than a coordinator allows.
    """
    request = call.generation
    # Only if a parser splits the answer: otherwise the markers would remain in the text.
    shows_markers = isinstance(request, ChatRequest) and listen(form, tools.names, is_thinking=False) is not None
    prompts = [_chat(request, tools)] if isinstance(request, ChatRequest) else _texts(request)
    choices = (request.n or 1) * len(prompts)
    if choices > _CHOICES_MAX:
        raise RequestInvalid(f"{choices} choices are more than {_CHOICES_MAX}", "n")
    sampling, limits = _sampling(request), _limits(request)
    constraint = constraint_of(request, tools) if isinstance(request, ChatRequest) else None
    return [
        GenerateRequest(
            id=f"{call.id}/{at}",
            prompt=prompt,
            sampling=sampling,
            limits=limits,
            n=request.n or 1,
            resume=resume,
            cache_salt=call.tenant,
            yields=call.is_preemptible,
            speculate=speculate,
            constraint=constraint,
            shows_markers=shows_markers,
        )
        for at, prompt in enumerate(prompts)
    ]


def echo_of(request: GenerationRequest, prompt: Prompt) -> str:
    """Return the prompt that the answers begin with, if the caller requests an echo.

    Raises RequestInvalid if the prompt is not text.
    """
    if isinstance(request, ChatRequest) or not request.echo:
        return ""
    if isinstance(prompt, TextPrompt):
        return prompt.text
    raise RequestInvalid("echo is only supported for text prompts", "echo")


def _chat(request: ChatRequest, tools: Tools) -> Prompt:
    options = dict(request.chat_template_kwargs or {})
    if request.reasoning_effort is not None:
        options.setdefault("reasoning_effort", request.reasoning_effort)
        if request.reasoning_effort == "none":
            options.setdefault("enable_thinking", False)
    return ChatPrompt([plain_message(message) for message in request.messages], list(tools.shown), options)


def _texts(request: CompletionRequest) -> list[Prompt]:
    if isinstance(request.prompt, str):
        return [TextPrompt(request.prompt)]
    token_ids = [part for part in request.prompt if isinstance(part, int)]
    if token_ids:
        return [TokenPrompt(token_ids)]
    return [
        TextPrompt(part) if isinstance(part, str) else TokenPrompt(part)
        for part in request.prompt
        if not isinstance(part, int)
    ]


def plain_message(message: Message) -> dict[str, Any]:
    """Return a message in the form of chat templates: content as one string, no empty fields."""
    content = message.content
    if isinstance(content, list):
        content = "".join(part.text or "" for part in content)
    # Templates support "system"; "developer" is OpenAI's newer name for the same role.
    plain: dict[str, Any] = {"role": "system" if message.role == "developer" else message.role}
    if message.tool_calls:
        # Some templates recognize a tool call by its missing content.
        return plain | {"content": content, "tool_calls": message.tool_calls}
    named = {"content": content or "", "tool_call_id": message.tool_call_id, "name": message.name}
    return plain | {name: value for name, value in named.items() if value is not None}


def _sampling(request: GenerationRequest) -> Sampling:
    return Sampling(
        temperature=1.0 if request.temperature is None else request.temperature,
        top_k=max(0, request.top_k or 0),
        top_p=1.0 if request.top_p is None else request.top_p,
        min_p=request.min_p or 0.0,
        seed=0 if request.seed is None else 1 + request.seed % 2**61,
        presence_penalty=request.presence_penalty or 0.0,
        frequency_penalty=request.frequency_penalty or 0.0,
        repetition_penalty=request.repetition_penalty or 1.0,
        logit_bias={int(token): bias for token, bias in (request.logit_bias or {}).items()},
        logprobs=request.alternatives,
    )


def _limits(request: GenerationRequest) -> Limits:
    # OpenAI's completions stop after 16 tokens by default; its chats continue to the context's end.
    default = None if isinstance(request, ChatRequest) else 16
    max_tokens = default if request.tokens_limit is None else request.tokens_limit
    return Limits(max_tokens=max_tokens, stop=request.stops, ignore_eos=bool(request.ignore_eos))


def _check_nesting(request: ChatRequest) -> None:
    """Raises RequestInvalid, naming the field, if the caller's own objects are deeper than _DEPTH_MAX."""
    for field, value in _own_objects(request):
        if value and _is_deeper(value, _DEPTH_MAX):
            raise RequestInvalid(f"{field}: nested deeper than {_DEPTH_MAX} levels", field)


def _own_objects(request: ChatRequest) -> Iterator[tuple[str, Any]]:
    yield "response_format", request.response_format
    yield "tools", request.tools
    yield "chat_template_kwargs", request.chat_template_kwargs
    for at, message in enumerate(request.messages):
        yield f"messages[{at}].tool_calls", message.tool_calls


def _is_deeper(value: Any, levels: int) -> bool:
    layer = [value]
    for _ in range(levels + 1):
        layer = [inner for outer in layer for inner in _inside(outer)]
        if not layer:
            return False
    return True


def _inside(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []
