"""The choice of the parser for a model's answer to one request."""

from cluster.models.chat_format import ChatFormat, ToolFormat
from cluster.models.tool_calls.bare import BareListener
from cluster.models.tool_calls.harmony import HarmonyListener
from cluster.models.tool_calls.named import DEEPSEEK, MISTRAL, NamedListener
from cluster.models.tool_calls.speech import SpeechListener
from cluster.models.tool_calls.tagged import TaggedListener
from cluster.models.tool_calls.thoughts import Plain, ThoughtListener


def listen(form: ChatFormat, functions: frozenset[str], *, is_thinking: bool) -> SpeechListener | None:
    """Return the parser of an answer that may call these functions; None if all of it is content."""
    if form.tools == "harmony":
        return HarmonyListener()
    calls = _for_calls(form.tools, functions) if form.tools and functions else None
    if form.thought is None:
        return calls
    return ThoughtListener(form.thought, calls or Plain(), is_thinking=is_thinking)


def _for_calls(form: ToolFormat, functions: frozenset[str]) -> SpeechListener:
    match form:
        case "hermes":
            return TaggedListener("<tool_call>", "</tool_call>")
        case "mistral":
            return TaggedListener("[TOOL_CALLS]")
        case "mistral_named":
            return NamedListener(MISTRAL)
        case "deepseek" | "deepseek_fenced":
            return NamedListener(DEEPSEEK)
        case "llama":
            return BareListener(functions, "<|python_tag|>")
        case _:
            return BareListener(functions)
