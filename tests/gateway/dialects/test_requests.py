"""Requests of other APIs and forms: what becomes of them, and that bad ones are refused by their field."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.dialects.openai import read_form, with_model
from gateway.dialects.routes import ROUTES
from gateway.errors import FeatureUnsupported
from runtime.errors import RequestInvalid, ServiceError

Json = dict[str, Any]

USER = {"role": "user", "content": "Hi"}
CHAT = {"model": "m", "messages": [USER]}


def read(path: str, asked: Json) -> Json:
    """What goes to backends."""
    route = next(route for route in ROUTES if route.path == path)
    sent: Json = json.loads(route.read(json.dumps(asked).encode()).raw)
    return sent


def test_anthropics_blocks_become_messages_in_order() -> None:
    picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA"}}
    turns = [
        {"role": "user", "content": [{"type": "text", "text": "See?"}, picture]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": "x"},
                {"type": "text", "text": "Let me."},
                {"type": "tool_use", "id": "t1", "name": "look", "input": {"at": "it"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "t1",
                    "content": [{"type": "text", "text": "dark"}, picture],
                },
                {"type": "text", "text": "Well?"},
            ],
        },
    ]
    asked = CHAT | {"messages": turns, "max_tokens": 5, "system": [{"type": "text", "text": "Be brief."}]}
    sent = read("/v1/messages", asked | {"stop_sequences": ["x"], "thinking": {"type": "enabled"}})
    messages = sent["messages"]
    assert [message["role"] for message in messages] == ["system", "user", "assistant", "tool", "user"]
    assert messages[1]["content"][1]["image_url"]["url"] == "data:image/png;base64,AA"
    assert json.loads(messages[2]["tool_calls"][0]["function"]["arguments"]) == {"at": "it"}
    assert messages[3] == {"role": "tool", "tool_call_id": "t1", "content": "dark"}
    assert [part["type"] for part in messages[4]["content"]] == ["image_url", "text"]
    assert (sent["stop"], sent["max_tokens"]) == (["x"], 5)


@pytest.mark.parametrize(
    ("choice", "sent"),
    [
        ({"type": "auto"}, {"tool_choice": "auto"}),
        ({"type": "any"}, {"tool_choice": "required"}),
        ({"type": "none"}, {"tool_choice": "none"}),
        (
            {"type": "tool", "name": "look", "disable_parallel_tool_use": True},
            {"tool_choice": {"type": "function", "function": {"name": "look"}}, "parallel_tool_calls": False},
        ),
    ],
)
def test_anthropics_choice_of_tools(choice: Json, sent: Json) -> None:
    tools = [{"name": "look", "input_schema": {"type": "object"}}]
    asked = read("/v1/messages", CHAT | {"max_tokens": 5, "tools": tools, "tool_choice": choice})
    assert {name: asked[name] for name in sent} == sent


def test_ollamas_calls_get_ids_that_their_results_find() -> None:
    calls = [{"function": {"name": name, "arguments": {"a": 1}}} for name in ("look", "go")]
    results = [{"role": "tool", "content": "b", "tool_name": "go"}, {"role": "tool", "content": "a"}]
    turns = [USER, {"role": "assistant", "content": "", "tool_calls": calls}, *results]
    sent = read("/api/chat", CHAT | {"messages": turns, "format": {"type": "object"}, "think": True})
    ids = [call["id"] for call in sent["messages"][1]["tool_calls"]]
    assert [message["tool_call_id"] for message in sent["messages"][2:]] == ids[::-1]
    assert sent["response_format"]["json_schema"]["schema"] == {"type": "object"}
    assert sent["stream"] is True


@pytest.mark.parametrize(("path", "text"), [("/api/embed", "input"), ("/api/embeddings", "prompt")])
def test_wishes_about_where_vectors_are_made_pass(path: str, text: str) -> None:
    sent = read(path, {"model": "m", text: "x", "millrace": {"privacy": "private"}, "provider": {"only": ["a"]}})
    assert (sent["millrace"]["privacy"], sent["provider"]["only"]) == ("private", ["a"])


def test_ollamas_options_become_fields() -> None:
    options = {"num_predict": -1, "repeat_penalty": 1.1, "num_ctx": 4096, "stop": ["x"], "seed": 4}
    sent = read("/api/generate", {"model": "m", "prompt": "Hi", "stream": False, "options": options})
    assert sent == {"model": "m", "messages": [USER], "repetition_penalty": 1.1, "stop": ["x"], "seed": 4}
    assert read("/api/generate", {"model": "m", "prompt": "Hi", "suffix": "!", "stream": False})["suffix"] == "!"


@pytest.mark.parametrize(
    ("path", "asked", "param"),
    [
        ("/v1/messages", CHAT, "max_tokens"),
        ("/v1/messages", CHAT | {"max_tokens": 5, "messages": []}, "messages"),
        ("/v1/messages", CHAT | {"max_tokens": 5, "stop_sequences": ["x"] * 10_000}, "stop_sequences"),
        ("/v1/messages", CHAT | {"max_tokens": 5, "messages": [USER | {"role": "tool"}]}, "messages[0].role"),
        (
            "/v1/messages",
            CHAT | {"max_tokens": 5, "tools": [{"name": "x", "type": "bash_20250124"}]},
            "tools[0].type",
        ),
        ("/v1/messages", CHAT | {"max_tokens": 5, "mcp_servers": [{}]}, "mcp_servers"),
        ("/v1/messages", CHAT | {"max_tokens": 5, "output_config": {"format": {}}}, "output_config.format"),
        ("/api/chat", CHAT | {"messages": []}, "messages"),
        ("/api/chat", CHAT | {"messages": [USER | {"role": "developer"}]}, "messages[0].role"),
        ("/api/chat", CHAT | {"options": {"stop": ["x"] * 10_000}}, "options.stop"),
        ("/api/chat", CHAT | {"options": {"temperature": 9}}, "options.temperature"),
        ("/api/generate", {"model": "m"}, "prompt"),
        ("/api/embed", {"model": "m", "input": 5}, "input"),
        ("/v1/rerank", {"model": "m", "query": "q", "documents": ["x"] * 5000}, "documents"),
        ("/v1/chat/completions", CHAT | {"stop": ["x"] * 10_000}, "stop"),
        ("/v1/chat/completions", CHAT | {"tools": [{"type": "function"}]}, "tools[0].function.name"),
        (
            "/v1/chat/completions",
            CHAT | {"response_format": {"type": "json_schema"}},
            "response_format.json_schema",
        ),
        (
            "/v1/chat/completions",
            CHAT
            | {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "a", "schema": {"enum": [{"a": 2**64}]}},
                }
            },
            "response_format.json_schema.schema",
        ),
        (
            "/v1/chat/completions",
            CHAT
            | {
                "tools": [{"type": "function", "function": {"name": "a", "parameters": {"minimum": -(2**63) - 1}}}]
            },
            "tools[0]",
        ),
        ("/v1/chat/completions", CHAT | {"model": "a\x00b"}, "model"),
        ("/v1/audio/speech", {"model": "m", "input": ""}, "input"),
    ],
)
def test_what_is_wrong_is_refused_by_its_field(path: str, asked: Json, param: str) -> None:
    with pytest.raises((RequestInvalid, FeatureUnsupported)) as caught:
        read(path, asked)
    assert caught.value.param == param
    assert param.split(".")[-1].split("[")[0] in caught.value.message


def _form(parts: list[tuple[str, bytes, bool]], boundary: bytes = b"xYz") -> bytes:
    body = b""
    for name, content, is_file in parts:
        file = b'; filename="a.wav"' if is_file else b""
        body += b'--%s\r\nContent-Disposition: form-data; name="%s"%s\r\n\r\n' % (boundary, name.encode(), file)
        body += content + b"\r\n"
    return body + b"--%s--\r\n" % boundary


@given(sound=st.binary(max_size=400), model=st.from_regex(r"[a-z]{1,20}", fullmatch=True))
def test_forms_are_read_past_their_files_and_stay_as_they_are(sound: bytes, model: str) -> None:
    raw = _form([("file", sound, True), ("model", b"m", False), ("stream", b"true", False)])
    request, content_type = read_form(raw)
    assert (request.model, request.is_stream) == ("m", True)
    assert content_type == 'multipart/form-data; boundary="xYz"'
    renamed = with_model(raw, model)
    assert renamed == _form([("file", sound, True), ("model", model.encode(), False), ("stream", b"true", False)])


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{}",
        b"--\r\n\r\n",
        b"--x\r\n" + b"a" * 10_000,
        _form([("file", b"x", True)]),
        _form([("model", b"m", False)] * 2),
        _form([("model", b"\xff", False)]),
        _form([("model", b"m" * 100_000, False)]),
        _form([("a", b"", False)] * 200),
        _form([("model", b"m", False)])[:-9],
        _form([("model", b"m", False)], b"x" * 71),
        *(
            b"--x\r\n" + head + b"\r\n\r\nm\r\n--x--\r\n"
            for head in (
                b"",
                b"Content-Disposition: form-data",
                b"Content-Disposition: attachment; name=model",
                b'Content-Disposition: form-data; name="zz"; x=";name="model"',
                b'Content-Disposition: form-data; name="model"; x=";name="zz"',
                b'Content-Disposition: form-data; name="model"; name="zz"',
                b"Content-Disposition: form-data; name=\"model\"; name*=utf-8''zz",
                b'Content-Disposition: form-data; filename="a\\"; name="model"',
                b'Content-Disposition: form-data; name="model"; filename=""',
                b'X-Content-Disposition: form-data; name="model"',
                b'Content-Disposition: form-data; name="model"\r\nX-Content-Disposition: form-data; name="zz"',
                b'Content-Disposition: form-data; name="model"\r\nContent-Disposition: form-data; name="zz"',
                b'Content-Disposition: form-data; name="model"\r\n ; name="zz"',
                b'Content-Disposition: form-data; name="model"\nX: y',
                b'Content-Disposition: form-data; name="model"\r\nContent-Transfer-Encoding: base64',
                b'Content-Disposition: form-data; name="model"\r\nContent-Type: text/plain; charset=utf-16',
            )
        ),
        _form([("model", b"m", False)]) + _form([("model", b"n", False)]),
        _form([("model", b"m", False), ("a", b"\r\n--xYzz", False)]),
    ],
)
def test_forms_that_say_no_model_or_perhaps_another_are_refused(raw: bytes) -> None:
    with pytest.raises(RequestInvalid):
        read_form(raw)


def test_heads_as_clients_write_them_are_read() -> None:
    heads = (
        b'Content-Disposition: form-data; name="model"\r\nContent-Type: text/plain; charset=UTF-8',
        b"content-disposition: form-data; name=file; filename=a.wav; filename*=utf-8''a.wav",
        b'Content-Disposition: form-data; name="file"; filename="C:\\a;name=b.wav"\r\nContent-Type: audio/wav\r\n'
        b"Content-Transfer-Encoding: binary\r\nContent-Length: 1",
    )
    raw = b"".join(b"--x\r\n" + head + b"\r\n\r\nm\r\n" for head in heads) + b"--x--\r\n"
    assert read_form(raw)[0].model == "m"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
FIELDS = (
    *("model", "messages", "input", "prompt", "tools", "tool_choice", "text", "options", "format", "system"),
    *("instructions", "max_tokens", "role", "content", "type", "name", "documents", "query", "stream"),
)
requests = st.dictionaries(
    st.sampled_from(FIELDS),
    json_values | st.lists(st.dictionaries(st.sampled_from(FIELDS), json_values), max_size=2),
)


@given(asked=requests | json_values)
def test_no_request_can_make_reading_raise_anything_else(asked: Any) -> None:
    for route in ROUTES:
        _reads_or_refuses(route.read, json.dumps(asked).encode())


@given(raw=st.binary(max_size=200))
def test_no_bytes_can_make_reading_raise_anything_else(raw: bytes) -> None:
    for route in ROUTES:
        _reads_or_refuses(route.read, raw)


def _reads_or_refuses(read_: Callable[[bytes], object], raw: bytes) -> None:
    try:
        read_(raw)
    except ServiceError as error:
        assert error.message
