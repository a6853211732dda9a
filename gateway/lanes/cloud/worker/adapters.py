"""litellm as a library of provider adapters and nothing else; no other module imports it."""

import asyncio
import logging
import os
import warnings
from collections.abc import AsyncGenerator, Iterable
from contextlib import suppress
from functools import lru_cache
from operator import attrgetter
from typing import Any

# litellm reads these while it is imported, so this module sets them, not the parent process.
os.environ.update(
    LITELLM_LOCAL_MODEL_COST_MAP="True",  # else it fetches its price map from GitHub
    LITELLM_MODE="PRODUCTION",  # else it loads the first .env file it finds above its own folder
    MAX_IMAGE_URL_DOWNLOAD_SIZE_MB="0",  # it would fetch images from addresses that clients choose
    REPEATED_STREAMING_CHUNK_LIMIT="1000000000",  # it would break off answers that repeat a word 100 times
    LITELLM_LOG="CRITICAL",
)
logging.disable(logging.CRITICAL)  # its log lines hold prompts
warnings.simplefilter("ignore")

import httpx  # noqa: E402  # after the environment, like litellm

from gateway.lanes.cloud.worker.answer_bounds import ERROR_BYTES_MAX, bound_answers, streams  # noqa: E402

bound_answers()  # before litellm makes its clients
import litellm  # noqa: E402
import openai  # noqa: E402
from litellm.litellm_core_utils import secret_redaction  # noqa: E402
from litellm.llms.openai.common_utils import BaseOpenAILLM  # noqa: E402

from gateway.lanes.cloud.worker.providers import CloudModel, Timeouts  # noqa: E402
from gateway.lanes.cloud.worker.requests import ChatRequest, Json, Request  # noqa: E402
from runtime.workers.errors import BrokenOff, Refusal  # noqa: E402

CLOSE_S = 5.0
NO_KEY = "no-key-configured"

litellm.suppress_debug_info = True
litellm.telemetry = False
litellm.drop_params = False
litellm.modify_params = False
litellm.num_retries = 0
litellm.cache = None
litellm.turn_off_message_logging = True
litellm.disable_streaming_logging = True
litellm.disable_hf_tokenizer_download = True
# litellm's counter would fetch images to measure them. The gateway counts what providers do not.
litellm.disable_token_counter = True
litellm.callbacks = []
litellm.input_callback = []
litellm.success_callback = []
litellm.failure_callback = []


def _bound_redaction() -> None:
    """Limit the texts that litellm searches for secrets: an unreadable answer becomes an error's text."""
    redact = secret_redaction.python_redact_string
    secret_redaction.python_redact_string = lambda value: redact(value[:ERROR_BYTES_MAX])


_bound_redaction()


@lru_cache(maxsize=1024)
def provider_of(litellm_model: str) -> str:
    """The provider's name as litellm spells it, for example `openai`.

    Raises Refusal if litellm knows none for the model.
    """
    try:
        _, provider, _, _ = litellm.get_llm_provider(model=litellm_model)
    except litellm.BadRequestError:
        raise Refusal(502, "provider_unknown", f"litellm knows no provider for {litellm_model}.") from None
    return str(provider)


async def warm_up(models: Iterable[CloudModel]) -> None:
    """Load now what litellm and OpenAI's client load on first use: half a second that no request need wait for."""
    # Some adapters for OpenAI's wire format would otherwise open a pool of connections per request.
    litellm.aclient_session = BaseOpenAILLM.get_async_http_client()
    client = openai.AsyncOpenAI(api_key=NO_KEY, http_client=litellm.aclient_session)
    for lazy in ("chat.completions.with_raw_response", "completions.with_raw_response"):
        attrgetter(lazy)(client)
    one_of_each = {model.litellm_model.partition("/")[0]: model.litellm_model for model in models}
    for litellm_model in one_of_each.values():
        with suppress(Exception):  # a wrong model is reported when it is requested
            stream = await litellm.acompletion(
                model=litellm_model,
                messages=[{"role": "user", "content": "ready?"}],
                mock_response="ready",  # made up by litellm itself, nothing is sent
                stream=True,
                api_key=NO_KEY,
                _skip_mcp_handler=True,
            )
            async for _ in stream:
                pass


async def ask(request: Request, model: CloudModel, secrets: dict[str, str], timeouts: Timeouts) -> Any:
    """litellm's answer: a ModelResponse or TextCompletionResponse, or a CustomStreamWrapper for `pieces`."""
    streams.set(bool(request.stream))
    arguments: Json = {
        **request.arguments(),
        **model.parameters,
        # Without a key, some adapters would search the environment for one and fail.
        **(secrets or {"api_key": NO_KEY}),
        "model": model.litellm_model,
        # Only the connection is litellm's to time: the caller bounds first byte, gaps and the whole.
        "timeout": httpx.Timeout(timeouts.total_s, connect=timeouts.connect_s),
        "max_retries": 0,
        "num_retries": 0,
        # Otherwise any tool makes it import its tool gateway, which is not installed and would obey clients.
        "_skip_mcp_handler": True,
    }
    if model.base_url:
        arguments["api_base"] = model.base_url
    # litellm uses metadata itself; for providers with OpenAI's API the field is the provider's.
    metadata = arguments.pop("metadata", None)
    if metadata and provider_of(model.litellm_model) == "openai":
        arguments["extra_body"] = {"metadata": metadata}
    if isinstance(request, ChatRequest):
        return await litellm.acompletion(**arguments)
    return await _ask_completion(arguments)


async def _ask_completion(arguments: Json) -> Any:
    """Return a text completion; a stream is taken before litellm's second wrapper, which hides how it ended."""
    if not arguments["stream"]:
        return await litellm.atext_completion(**arguments)
    prompt = arguments.pop("prompt")
    if provider_of(arguments["model"]) == "openai":
        arguments["model"] = "text-completion-openai/" + arguments["model"].removeprefix("openai/")
    elif not isinstance(prompt, str):
        raise Refusal(400, "invalid_value", "This model streams completions of one string only.", "prompt")
    messages = [{"role": "user", "content": prompt}]
    return await litellm.acompletion(messages=messages, text_completion=True, **arguments)


async def pieces(stream: Any) -> AsyncGenerator[Any, None]:
    """Yield the chunks of a streamed answer up to the provider's end. Raises BrokenOff if the end is missing.

    Closes the provider's connection however it ends.
    """
    native = getattr(stream, "completion_stream", None)
    # litellm's wrapper drops refusals; streams that OpenAI's client reads need no wrapper.
    chunks = native if isinstance(native, openai.AsyncStream) else stream
    finished = False
    try:
        async for chunk in chunks:
            if any(choice.finish_reason for choice in chunk.choices or ()):
                finished = chunks is native or _provider_finished(stream)
                if not finished:
                    break
            yield chunk
        if not finished:
            raise BrokenOff
    finally:
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await _wrapper(stream).aclose()


def _provider_finished(stream: Any) -> bool:
    """Whether the provider gave a finish reason: litellm's wrapper makes "stop" out of any end of the body."""
    wrapper = _wrapper(stream)
    return bool(wrapper.received_finish_reason or wrapper.intermittent_finish_reason)


def _wrapper(stream: Any) -> Any:
    """Return litellm's stream wrapper, which its text completion handler keeps inside a generator."""
    frame = getattr(stream, "ag_frame", None)
    return stream if frame is None else frame.f_locals.get("streamwrapper", stream)
