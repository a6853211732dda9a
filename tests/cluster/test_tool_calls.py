"""Parsing of model output into content, thoughts and calls, however the text is split into pieces."""

import json
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.models.chat_format import ChatFormat, ToolFormat
from cluster.models.tool_calls.forms import FORMS
from cluster.models.tool_calls.parser_choice import listen
from cluster.models.tool_calls.speech import CallArguments, CallBegun, Content, Speech, Thought, merged
from tests.examples import examples

FUNCTIONS = frozenset(("weather", "noon"))
THINK = ("<think>", "</think>")
D = "\uff5ctool\u2581"
CALLS, CALLS_END = f"<{D}calls\u2581begin\uff5c>", f"<{D}calls\u2581end\uff5c>"
CALL, SEP, CALL_END = f"<{D}call\u2581begin\uff5c>", f"<{D}sep\uff5c>", f"<{D}call\u2581end\uff5c>"


@dataclass
class RecordingSink:
    content: str = ""
    thought: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)

    def take(self, speech: list[Speech]) -> None:
        for said in speech:
            match said:
                case Content(text):
                    self.content += text
                case Thought(text):
                    self.thought += text
                case CallBegun(index, name):
                    assert index == len(self.calls)
                    self.calls.append((name, ""))
                case CallArguments(index, text):
                    assert index == len(self.calls) - 1
                    name, before = self.calls[index]
                    self.calls[index] = name, before + text


def hear(form: ChatFormat, pieces: list[str], *, is_thinking: bool = False) -> RecordingSink:
    listener, heard = listen(form, FUNCTIONS, is_thinking=is_thinking), RecordingSink()
    assert listener
    for piece in pieces:
        heard.take(merged(listener.feed(piece)))
    heard.take(merged(listener.end()))
    return heard


ROME, OSLO = '{"city": "Rome"}', '{"city": "O{s}\\"lo", "in": [1, {"a": "}"}]}'

# A model's output in a format, and its parts: content, thought, calls.
SAID: list[tuple[ToolFormat, str, str, str, list[tuple[str, str]]]] = [
    ("hermes", "Just <b>text</b> <tool, and more. \n", "Just <b>text</b> <tool, and more. \n", "", []),
    (
        "hermes",
        'Let me look.\n<tool_call>\n{"name": "weather", "arguments": ' + ROME + "}\n</tool_call>",
        "Let me look.",
        "",
        [("weather", ROME)],
    ),
    (
        "hermes",
        f'<tool_call>{{"arguments": {OSLO}, "name": "weather"}}</tool_call>'
        '\n<tool_call>\n{"name":"noon"}\n</tool_call>\n So.',
        "So.",
        "",
        [("weather", OSLO), ("noon", "{}")],
    ),
    ("hermes", '<tool_call>\n{"name": "weather", "arguments": {"ci', "", "", [("weather", '{"ci')]),
    ("hermes", "<tool_call>not json</tool_call> then", "<tool_call>not json</tool_call> then", "", []),
    ("hermes", "<tool_call>{'name': 1}</tool_call>", "<tool_call>{'name': 1}</tool_call>", "", []),
    (
        "hermes",
        '<tool_call>{"name": "noon", "arguments": "{\\"a\\": 1}"}</tool_call>',
        "",
        "",
        [("noon", '{"a": 1}')],
    ),
    ("hermes", "<think>\nHm, <tool_call>?\n</think>\n\nYes. ", "Yes. ", "Hm, <tool_call>?", []),
    ("hermes", "<think>\n\n</think>\n\nYes", "Yes", "", []),
    ("hermes", "<think>cut in the mid", "", "cut in the mid", []),
    ("hermes", " <thin ice", " <thin ice", "", []),
    ("llama", f'{{"name": "weather", "parameters": {ROME}}}', "", "", [("weather", ROME)]),
    (
        "llama",
        f'<|python_tag|>{{"type": "function", "name": "weather", "parameters": {ROME}}}; '
        '{"name": "noon", "parameters": {}}',
        "",
        "",
        [("weather", ROME), ("noon", "{}")],
    ),
    ("llama", '{"name": "Tom", "age": 3}', '{"name": "Tom", "age": 3}', "", []),
    ("llama", '{"age": 3, "name": "noon"}', '{"age": 3, "name": "noon"}', "", []),
    ("llama", "<|python_tag|>noon.call()", "<|python_tag|>noon.call()", "", []),
    ("llama", " {", " {", "", []),
    ("llama", "Hello {name}", "Hello {name}", "", []),
    ("json", f'\n{{"name": "noon", "arguments": {ROME}}}\n', "", "", [("noon", ROME)]),
    (
        "mistral",
        f'[TOOL_CALLS][{{"name": "weather", "arguments": {ROME}}}, {{"name": "noon", "arguments": {{}}}}]',
        "",
        "",
        [("weather", ROME), ("noon", "{}")],
    ),
    (
        "mistral_named",
        f"Well. [TOOL_CALLS]weather[ARGS]{OSLO}[TOOL_CALLS]noon[CALL_ID]a1B2c3d4e[ARGS]{{}}",
        "Well.",
        "",
        [("weather", OSLO), ("noon", "{}")],
    ),
    ("mistral_named", "[TOOL_CALLS]no brace", "[TOOL_CALLS]no brace", "", []),
    (
        "deepseek_fenced",
        f"I see.\n\n{CALLS}{CALL}function{SEP}weather\n```json\n{ROME}\n```{CALL_END}\n"
        f"{CALL}function{SEP}noon\n```json\n{{}}\n```{CALL_END}{CALLS_END}",
        "I see.",
        "",
        [("weather", ROME), ("noon", "{}")],
    ),
    ("deepseek", f"{CALLS}{CALL}weather{SEP}{ROME}{CALL_END}{CALLS_END}", "", "", [("weather", ROME)]),
    (
        "harmony",
        "<|channel|>analysis<|message|>They want rain.<|end|><|start|>assistant<|channel|>commentary"
        f" to=functions.weather <|constrain|>json<|message|>{ROME}<|call|>",
        "",
        "They want rain.",
        [("weather", ROME)],
    ),
    (
        "harmony",
        " to=functions.noon<|channel|>commentary json<|message|><|call|>",
        "",
        "",
        [("noon", "{}")],
    ),
    (
        "harmony",
        "<|channel|>analysis<|message|>a < b<|end|><|start|>assistant<|channel|>final<|message|>It is <noon>.",
        "It is <noon>.",
        "a < b",
        [],
    ),
    ("harmony", "no channels at all", "no channels at all", "", []),
]


@pytest.mark.parametrize("said", SAID)
def test_the_parts_are_the_same_for_the_whole_text_and_its_characters(
    said: tuple[ToolFormat, str, str, str, list[tuple[str, str]]],
) -> None:
    _, text, *_ = said
    is_heard(said, [text])
    is_heard(said, list(text))


@given(permille=st.lists(st.integers(0, 1000), max_size=12))
def test_the_parts_are_the_same_however_the_text_is_split(permille: list[int]) -> None:
    """All texts are cut at the same parts of their length, because drawing the cuts takes most of the CPU."""
    for said in SAID:
        _, text, *_ = said
        cuts = sorted(len(text) * at // 1000 for at in permille)
        is_heard(said, [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)])


def is_heard(said: tuple[ToolFormat, str, str, str, list[tuple[str, str]]], pieces: list[str]) -> None:
    kind, _, content, thought, calls = said
    form = ChatFormat(kind, None if kind == "harmony" else THINK)
    assert hear(form, pieces) == RecordingSink(content, thought, calls), pieces


def values() -> st.SearchStrategy[Any]:
    plain = st.one_of(st.none(), st.booleans(), st.integers(), st.text("a{}[]\\\"',:<|é ", max_size=8))
    return st.recursive(
        plain, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner)
    )


@dataclass(frozen=True)
class Written:
    """A model's output, and the size of the pieces in which it arrives."""

    calls: list[tuple[str, dict[str, Any]]]
    thought: str
    is_thinking: bool
    size: int
    indent: int | None


WRITTEN = st.builds(
    Written,
    calls=st.lists(
        st.tuples(st.sampled_from(sorted(FUNCTIONS)), st.dictionaries(st.text(max_size=5), values(), max_size=3)),
        min_size=1,
        max_size=3,
    ),
    thought=st.text("ab <\n", max_size=10),
    is_thinking=st.booleans(),
    size=st.integers(1, 9),
    indent=st.sampled_from([None, 2]),
)


def is_read(kind: ToolFormat, said: Written) -> None:
    shape = FORMS[kind]
    calls = said.calls if shape.separator is not None else said.calls[:1]
    written = [(name, json.dumps(arguments, indent=said.indent)) for name, arguments in calls]
    bodies = [shape.head_of(name) + arguments + shape.tail for name, arguments in written]
    text = shape.begin + (shape.separator or "").join(bodies) + shape.end
    form = ChatFormat(kind, None if kind == "harmony" else THINK)
    if form.thought:
        text = ("" if said.is_thinking else "<think>") + said.thought + "</think>" + text
    pieces = [text[at : at + said.size] for at in range(0, len(text), said.size)]
    heard = hear(form, pieces, is_thinking=said.is_thinking)
    assert heard.calls == written, kind
    assert heard.content == "", kind
    assert heard.thought == (said.thought.strip() if form.thought else ""), kind


@settings(max_examples=examples(12, 35))
@given(said=WRITTEN)
def test_written_calls_are_read_unchanged(said: Written) -> None:
    """In each format the same calls, because drawing them takes most of the CPU."""
    for kind in FORMS:
        is_read(kind, said)


@pytest.mark.slow
@pytest.mark.parametrize("kind", FORMS)
@settings(max_examples=examples(200, 1000))
@given(said=WRITTEN)
def test_written_calls_are_read_unchanged_for_long(kind: ToolFormat, said: Written) -> None:
    is_read(kind, said)


@given(text=st.text('ab{}"<>[]/\n name:', max_size=60), size=st.integers(1, 7))
def test_text_without_calls_is_not_lost(text: str, size: int) -> None:
    for kind in FORMS:
        pieces = [text[at : at + size] for at in range(0, len(text), size)]
        if kind != "harmony":
            assert hear(ChatFormat(kind), pieces) == RecordingSink(text)
