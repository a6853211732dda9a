"""Chat templates: tools and calls as transformers renders them, and the formats that a template reveals."""

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from cluster.errors import ModelInvalid, RequestInvalid
from cluster.generation import ChatPrompt
from cluster.models import template_process
from cluster.models.chat_format import ToolFormat, read_format
from cluster.models.chat_template import ChatTemplate, read_folder_template
from tests.clusters import DEMO_MODEL

TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "title": "<é>"}}}]


@pytest.fixture
def real_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start renderers as the product does, not as forks of a template: `python -m` with an own environment."""
    monkeypatch.setattr(template_process, "Popen", subprocess.Popen)


def calling(arguments: str, call_id: str = "call_123", content: str | None = None) -> list[dict[str, Any]]:
    function = {"name": "weather", "arguments": arguments}
    return [
        {"role": "user", "content": "Hi"},
        {
            "role": "assistant",
            "content": content,
            "tool_calls": [{"id": call_id, "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": call_id, "content": "sunny"},
    ]


def render(source: str, messages: list[dict[str, Any]], **options: Any) -> str:
    return ChatTemplate(source, {"bos_token": "<s>"}).render(ChatPrompt(messages, TOOLS, options))


def test_tools_are_rendered_as_transformers_does() -> None:
    source = (
        "{{ bos_token }}{% for tool in tools %}{{ tool | tojson(indent=2) }}{% endfor %}"
        "{% for message in messages %}{% generation %}{{ message.content }}{% endgeneration %}"
        "{% for call in message.tool_calls or [] %}"
        "{{ call.function.arguments | tojson(sort_keys=true) }}{% endfor %}"
        "{% endfor %}{% if add_generation_prompt %}A:{% endif %}{{ mood }}{{ documents is none }}"
    )
    messages = calling('{"b": "<i>", "a": 1}', content="")
    objects = json.loads(json.dumps(messages))
    objects[1]["tool_calls"][0]["function"]["arguments"] = {"b": "<i>", "a": 1}
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(DEMO_MODEL / "tokenizer.json"), bos_token="<s>")
    expected = tokenizer.apply_chat_template(
        objects, tools=TOOLS, chat_template=source, tokenize=False, add_generation_prompt=True, mood="calm"
    )
    assert render(source, messages, mood="calm") == expected


def test_calls_are_rendered_whatever_the_template_expects() -> None:
    """Templates may expect arguments as objects or text, content as none or text, and ids of nine letters."""
    arguments = '{"city": "Rome"}'
    loop = "{% for call in messages[1].tool_calls %}%s{% endfor %}{{ tools | length }}"
    plain = loop.replace("%s", "{{ '!' + call.function.arguments }}")
    assert render(plain, calling(arguments)) == f"!{arguments}1"
    needs_text = loop.replace("%s", "{{ messages[1].content + call.function.arguments.city }}")
    assert render(needs_text, calling(arguments)) == "Rome1"
    asks_for_none = "{% if messages[1].content is none %}none{% endif %}{{ tools | length }}"
    assert render(asks_for_none, calling(arguments)) == "none1"
    ids = "[TOOL_CALLS]{{ messages[1].tool_calls[0].id }} {{ messages[2].tool_call_id }}{% if tools %}{% endif %}"
    mark, first, second = render(ids, calling(arguments)).replace("]", "] ").split()
    assert (mark, first, len(first), first.isalnum()) == ("[TOOL_CALLS]", second, 9, True)
    assert render(ids, calling(arguments, "a1B2c3d4e")) == "[TOOL_CALLS]a1B2c3d4e a1B2c3d4e"
    with pytest.raises(RequestInvalid, match="no attribute 'nothing'"):
        render("{{ tools.nothing.at_all }}", calling("no json"))


def test_a_template_without_tools_refuses_them() -> None:
    with pytest.raises(RequestInvalid) as caught:
        render("{{ messages[0].content }}", calling("{}"))
    assert caught.value.param == "tools"


def test_options_reach_the_template_and_nothing_else(tmp_path: Path) -> None:
    source = "{{ messages | length }}{{ enable_thinking }}{{ self is defined }}{{ tools is none }}"
    options = {"enable_thinking": False, "messages": [], "self": 1, "tools": 3, "add_generation_prompt": 2}
    said = ChatTemplate(source, {}).render(ChatPrompt(calling("{}"), options=options))
    assert said.startswith("3False")
    assert said.endswith("True")
    templates = [
        {"name": "default", "template": "plain"},
        {"name": "tool_use", "template": "<tool_call>{{ tools | length }}"},
    ]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": templates}))
    named = read_folder_template(tmp_path)
    assert named
    assert named.format.tools == "hermes"
    assert named.render(ChatPrompt(calling("{}"))) == "plain"
    assert named.render(ChatPrompt(calling("{}"), TOOLS)) == "<tool_call>1"


@pytest.mark.parametrize(
    ("template", "tools", "thought"),
    [
        ("{% if tools %}<tool_call>{{ x }}</tool_call>", "hermes", None),
        ("{% if tools %}<tool_call> <think>\n</think>", "hermes", ("<think>", "</think>")),
        ("{{ '<|python_tag|>' }} Environment: ipython", "llama", None),
        ("[AVAILABLE_TOOLS] [TOOL_CALLS] [{", "mistral", None),
        ("[TOOL_CALLS]{{ name }}[ARGS]{{ arguments }} [THINK] [/THINK]", "mistral_named", ("[THINK]", "[/THINK]")),
        ("<\uff5ctool\u2581calls\u2581begin\uff5c>...```json", "deepseek_fenced", None),
        ("<\uff5ctool\u2581calls\u2581begin\uff5c>...", "deepseek", None),
        ("<|start|>assistant<|channel|>analysis<|message|></think>", "harmony", None),
        ("<tool_call><function={{ name }}><parameter=x>", None, None),
        ("answer with JSON that has name and arguments", "json", None),
    ],
)
def test_templates_tell_their_formats(template: str, tools: ToolFormat | None, thought: Any) -> None:
    form = read_format(template, takes_tools=True)
    assert (form.tools, form.thought) == (tools, thought)
    assert read_format(template, takes_tools=False).tools == ("harmony" if tools == "harmony" else None)


GREEDY = {
    "nested loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "macros that call themselves": "{% macro m(n) %}{% if n %}{{ m(n - 1) + m(n - 1) }}{% endif %}"
    "{% endmacro %}"
    "{{ m(40) }}",
    "repeated text": "{% set n = 10 ** 10 %}{{ 'a' * n }}",
    "doubled text": "{% set a = 'aaaaaaaa' %}" + "{% set a = a ~ a %}" * 40,
    "added text": "{% set a = 'aaaaaaaa' %}" + "{% set a = a + a %}" * 40,
    "long output": "{% for a in range(99999) %}{{ 'a' * 9999 }}{% endfor %}",
    "high power": "{{ 9 ** (9 ** 9) }}",
    "grown number": "{% set a = 99 %}" + "{% set a = a * a %}" * 60 + "{{ a }}",
    "wide text": "{% set n = 10 ** 10 %}{{ 'a'.center(n) }}",
    "wide filter": "{% set n = 10 ** 10 %}{{ 'a' | center(n) }}",
    "wide format": "{{ '%9999999999d' % 1 }}",
    "wide braces": "{{ '{:9999999999}'.format(1) }}",
    "joined text": "{% set a = 'a' * 999999 %}{{ a.join(range(99999) | map('string')) }}",
    "joined by a filter": "{% set a = 'a' * 999999 %}{{ range(99999) | join(a) }}",
    "replaced text": "{% set a = 'a' * 999999 %}{{ a.replace('a', a) }}",
    "replaced by a filter": "{% set a = 'a' * 999999 %}{{ a | replace('a', a) }}",
    "sorted texts": "{% set a = 'a' * 20000000 %}{{ ([a ~ 'b', a ~ 'c'] * 999999) | sort | length }}",
    "lists of lists": "{% set a = [1] %}"
    + "{% set a = [a, a, a, a, a, a, a, a] %}" * 20
    + "{{ a | string | length }}",
    "compared lists": "{% set a = [1] %}{% set b = [1] %}"
    + "{% set a = [a, a, a, a] %}{% set b = [b, b, b, b] %}" * 40
    + "{{ a == b }}",
    "many lists": "".join(f"{{% set a{at} = [0] * 60000000 %}}" for at in range(99)) + "{{ a0 | length }}",
    "chained filters": "{{ range(99999) | map('string') | map('center', 999999) | map('length') | sum }}",
}


@pytest.fixture
def low_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits that are soon reached: each page of 2 GiB, and each second, would be CPU of this test."""
    limits = replace(template_process.LIMITS, cpu_s=0.15, memory_bytes=2**29)
    monkeypatch.setattr(template_process, "LIMITS", limits)


@pytest.mark.timeout(120)
@pytest.mark.usefixtures("low_limits")
@pytest.mark.parametrize("source", GREEDY.values(), ids=GREEDY)
def test_a_template_that_would_hang_or_fill_the_machine_is_stopped(source: str, tmp_path: Path) -> None:
    """The template comes with a model's files, so it is foreign code."""
    (tmp_path / "chat_template.jinja").write_text(source)
    template = read_folder_template(tmp_path)
    assert template
    with pytest.raises(RequestInvalid, match="chat template"):
        template.render(ChatPrompt([{"role": "user", "content": "Hi"}]))


@pytest.mark.timeout(120)
@pytest.mark.usefixtures("low_limits", "real_processes")
@pytest.mark.parametrize(
    ("name", "reason"), [("nested loops", "takes longer than 0.15 s"), ("repeated text", "too much memory")]
)
def test_a_started_process_has_limits_of_time_and_memory(name: str, reason: str) -> None:
    with pytest.raises(RequestInvalid, match=reason):
        ChatTemplate(GREEDY[name], {}).render(ChatPrompt([{"role": "user", "content": "Hi"}]))


@pytest.mark.usefixtures("real_processes")
def test_a_harmless_template_with_every_bounded_operation_is_as_before() -> None:
    source = (
        "{% for m in messages %}"
        "{{ '**%s**' % m.role ~ ':' ~ (2 * 3 + 1) }}{{ 'ab'.replace('a', '<') | center(6) }}"
        "{{ ['x', 'y'] | join('-') }}{{ '{}={}'.format('k', 'v') }}{{ ', '.join(['p', 'q']) }}{% endfor %}"
    )
    prompt = ChatPrompt([{"role": "user", "content": "Hi"}])
    assert ChatTemplate(source, {}).render(prompt) == "**user**:7  <b  x-yk=vp, q"


@pytest.mark.usefixtures("real_processes")
def test_a_process_that_was_ended_is_started_again_for_the_next_conversation() -> None:
    template = ChatTemplate("{{ messages[0].content }}", {})
    assert template.render(ChatPrompt([{"role": "user", "content": "Hi \ud800 é"}])) == "Hi \ud800 é"
    process = template._template._child
    assert process
    process.process.kill()
    process.process.wait()
    assert template.render(ChatPrompt([{"role": "user", "content": "Hi"}])) == "Hi"


def test_a_template_that_is_too_long_is_refused() -> None:
    with pytest.raises(ModelInvalid, match="longer than"):
        ChatTemplate("{{ messages }}" * 100_000, {})
