"""The text around a call's name and arguments, by format."""

import json
from dataclasses import dataclass

from cluster.models.chat_format import ToolFormat

DEEPSEEK_SEPARATOR = "<\uff5ctool\u2581sep\uff5c>"
DEEPSEEK_CALL, DEEPSEEK_CALL_END = (
    "<\uff5ctool\u2581call\u2581begin\uff5c>",
    "<\uff5ctool\u2581call\u2581end\uff5c>",
)
DEEPSEEK_CALLS, DEEPSEEK_CALLS_END = (
    "<\uff5ctool\u2581calls\u2581begin\uff5c>",
    "<\uff5ctool\u2581calls\u2581end\uff5c>",
)
_NAME, _QUOTED = "NAME", "QUOTED"


@dataclass(frozen=True, slots=True)
class Form:
    """A format. `begin` and `end` stand around all calls, `head` and `tail` around each one's arguments.

    Without a `separator` there is never more than one call.
    """

    head: str
    tail: str
    begin: str = ""
    end: str = ""
    separator: str | None = None

    def head_of(self, name: str) -> str:
        """Return the text before the arguments of a call of this function."""
        return self.head.replace(_QUOTED, json.dumps(name)).replace(_NAME, name)


FORMS: dict[ToolFormat, Form] = {
    "hermes": Form('<tool_call>\n{"name": QUOTED, "arguments": ', "}\n</tool_call>", separator="\n"),
    "llama": Form('{"name": QUOTED, "parameters": ', "}"),
    "mistral": Form('{"name": QUOTED, "arguments": ', "}", "[TOOL_CALLS][", "]", ", "),
    "mistral_named": Form("[TOOL_CALLS]NAME[ARGS]", "", separator=""),
    "deepseek": Form(
        f"{DEEPSEEK_CALL}NAME{DEEPSEEK_SEPARATOR}", DEEPSEEK_CALL_END, DEEPSEEK_CALLS, DEEPSEEK_CALLS_END, ""
    ),
    "deepseek_fenced": Form(
        f"{DEEPSEEK_CALL}function{DEEPSEEK_SEPARATOR}NAME\n```json\n",
        f"\n```{DEEPSEEK_CALL_END}",
        DEEPSEEK_CALLS,
        DEEPSEEK_CALLS_END,
        "\n",
    ),
    "harmony": Form("<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>", ""),
    "json": Form('{"name": QUOTED, "arguments": ', "}"),
}
