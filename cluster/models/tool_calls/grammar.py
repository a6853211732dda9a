"""The constraint of an answer as a grammar for llguidance (its variant of Lark). Pure: it compiles nothing."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from cluster.generation import Constraint
from cluster.models.chat_format import ChatFormat
from cluster.models.tool_calls.forms import FORMS, Form

Thinking = Literal["never", "perhaps", "begun"]
"""Whether a thought may come before the answer, or has been begun by the prompt."""

# White space between JSON's tokens is limited: a model that may write it without end sometimes does.
_SPACE = r"(?: |\n {0,32})?"
_ANYTHING = "ANYTHING: /(?s:.*)/"
_HARMONY_THOUGHT = ("<|channel|>analysis<|message|>", "<|end|><|start|>assistant")


@dataclass(frozen=True, slots=True)
class Grammar:
    """A grammar. `lark` is the whole text; `schemas` are the caller's parts of it, by the request's field."""

    lark: str
    schemas: tuple[tuple[str, str], ...]


def write_grammar(
    constraint: Constraint, form: ChatFormat, special_ids: dict[str, int], thinking: Thinking
) -> Grammar:
    """Return the grammar. `special_ids` are the tokenizer's special tokens, which grammars name by number."""
    writer = _Writer(special_ids)
    answers = [*writer.json_answer(constraint, form), *writer.calls(constraint, form)]
    thought = writer.thought(form, thinking)
    rules = [f"start: {thought}answer", f"answer: {' | '.join(answers)}", *writer.rules]
    return Grammar("\n".join(rules), tuple(writer.schemas))


class _Writer:
    def __init__(self, special_ids: dict[str, int]) -> None:
        self._special_ids = special_ids
        self._specials = re.compile("|".join(map(re.escape, special_ids)) or "$^")
        self.rules: list[str] = []
        self.schemas: list[tuple[str, str]] = []

    def json_answer(self, constraint: Constraint, form: ChatFormat) -> Iterator[str]:
        """Yield the name of the rule for JSON, if it is allowed."""
        if constraint.schema is None:
            return
        begin = self._literal("<|channel|>final<|message|>") if form.tools == "harmony" else ""
        self._json("json_value", "response_format", constraint.schema, is_strict=constraint.is_strict)
        self.rules.append(f"json: {begin} json_value")
        yield "json"

    def calls(self, constraint: Constraint, form: ChatFormat) -> Iterator[str]:
        """Yield the name of the rule for calls, if they are allowed."""
        if not constraint.calls or not form.tools:
            return
        shape = FORMS[form.tools]
        for at, call in enumerate(constraint.calls):
            field = f"tools[{at}].function.parameters"
            self._json(f"arguments_{at}", field, call.parameters, is_strict=call.is_strict)
            head, tail = self._literal(shape.head_of(call.name)), self._literal(shape.tail)
            self.rules.append(f"call_{at}: {head} arguments_{at} {tail}")
        self.rules.append("call: " + " | ".join(f"call_{at}" for at in range(len(constraint.calls))))
        more = self._more(shape) if constraint.allows_parallel else ""
        self.rules.append(f"calls: {self._literal(shape.begin)} call {more} {self._literal(shape.end)}")
        yield "calls"

    def _more(self, shape: Form) -> str:
        return "" if shape.separator is None else f"({self._literal(shape.separator)} call)*"

    def thought(self, form: ChatFormat, thinking: Thinking) -> str:
        """Return the rule for what may stand before the answer."""
        marks = _HARMONY_THOUGHT if form.tools == "harmony" else form.thought
        if marks is None or thinking == "never":
            return ""
        opening, closing = marks
        if self._specials.match(closing):
            self.rules += [f"thought: ANYTHING {self._literal(closing)} /\\n{{0,2}}/", _ANYTHING]
        else:
            self.rules += [
                "thought: until_closed /\\n{0,2}/",
                f"until_closed[suffix={json.dumps(closing)}]: /(?s:.*)/",
            ]
        return "thought " if thinking == "begun" else f"({self._literal(opening)} thought)? "

    def _json(self, rule: str, field: str, schema: dict[str, Any], *, is_strict: bool) -> None:
        options = {"whitespace_pattern": _SPACE, "lenient": not is_strict}
        written = json.dumps({**schema, "x-guidance": options})
        self.schemas.append((field, f"start: %json {written}"))
        self.rules.append(f"{rule}: %json {written}")

    def _literal(self, text: str) -> str:
        """Return text as a grammar writes it: special tokens by number, the rest in quotes."""
        parts, at = [], 0
        for special in self._specials.finditer(text):
            parts += [json.dumps(text[at : special.start()])] if special.start() > at else []
            parts.append(f"<[{self._special_ids[special[0]]}]>")
            at = special.end()
        return " ".join([*parts, json.dumps(text[at:])] if text[at:] else parts)
