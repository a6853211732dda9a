"""How a model marks the parts of its answers that are not plain text: thoughts and tool calls.

The marks are read from its chat template.
"""

import re
from dataclasses import dataclass
from typing import Literal

ToolFormat = Literal[
    "hermes", "llama", "mistral", "mistral_named", "deepseek", "deepseek_fenced", "harmony", "json"
]
"""Formats named for the models that introduced them.

Hermes and Qwen, Llama 3, Mistral before version 11 and since, DeepSeek since 3.1 and before, gpt-oss; and bare
JSON.
"""

# Formats by what their templates contain; the first match counts.
_SIGNS: tuple[tuple[str, ToolFormat | None], ...] = (
    (r"<\|channel\|>[\s\S]*<\|message\|>", "harmony"),
    # Calls whose arguments are not JSON: there is no parser for them yet.
    (r"<function=|<arg_key>|<invoke name=|<minimax:tool_call>", None),
    (r"<tool_call>", "hermes"),
    (r"\[TOOL_CALLS\][\s\S]*\[ARGS\]|\[ARGS\][\s\S]*\[TOOL_CALLS\]", "mistral_named"),
    (r"\[TOOL_CALLS\]", "mistral"),
    ("<\uff5ctool\u2581calls\u2581begin\uff5c>[\\s\\S]*```json", "deepseek_fenced"),
    ("<\uff5ctool\u2581calls\u2581begin\uff5c>", "deepseek"),
    (r"<\|python_tag\|>|\bipython\b", "llama"),
)
_THOUGHTS = (("<think>", "</think>"), ("[THINK]", "[/THINK]"))
# Special tokens that occur in a model's own text, if they are special in its tokenizer.
_DEEPSEEK = tuple(
    f"<\uff5ctool\u2581{name}\uff5c>"
    for name in ("calls\u2581begin", "call\u2581begin", "sep", "call\u2581end", "calls\u2581end")
)
_MARKERS: dict[ToolFormat, tuple[str, ...]] = {
    "hermes": ("<tool_call>", "</tool_call>"),
    "llama": ("<|python_tag|>",),
    "mistral": ("[TOOL_CALLS]",),
    "mistral_named": ("[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"),
    "deepseek": _DEEPSEEK,
    "deepseek_fenced": _DEEPSEEK,
    "harmony": ("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>"),
    "json": (),
}


@dataclass(frozen=True, slots=True)
class ChatFormat:
    """A model's marks.

    `thought` are the two marks around a thought; None if it has none or writes them otherwise.
    """

    tools: ToolFormat | None = None
    thought: tuple[str, str] | None = None

    @property
    def markers(self) -> tuple[str, ...]:
        """The special tokens that must be visible to tell the parts of an answer apart."""
        return (*(_MARKERS[self.tools] if self.tools else ()), *(self.thought or ()))


def read_format(template: str, *, takes_tools: bool) -> ChatFormat:
    """Return the format of a chat template's source. `takes_tools` says whether the template uses tools."""
    tool_format: ToolFormat | None = next((kind for sign, kind in _SIGNS if re.search(sign, template)), "json")
    thought = next((marks for marks in _THOUGHTS if marks[1] in template), None)
    if tool_format == "harmony":
        return ChatFormat("harmony")
    return ChatFormat(tool_format if takes_tools else None, thought)
