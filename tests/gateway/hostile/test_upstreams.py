"""Backends that lie, tear off, never stop or smuggle: a status or an error event, and the next answer is right."""

import json
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from typing import Any

import pytest

from tests.fakes.broken_upstream import CHAT, EVENTS, SSE, STREAM, UNFRAMED, Endless, Step, chunk, said, whole
from tests.gateway.hostile.range import SPARES, Range, question
from tests.gateways import until

JSON = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
LENGTH = b"content-length: %d\r\n" % len(CHAT)
CHUNKED = b"transfer-encoding: chunked\r\n"
ERROR = b'{"error": {"message": "no room", "code": "full"}}'
ONE = SSE + chunk(EVENTS[0])
REST = b"".join(map(chunk, EVENTS[1:])) + b"0\r\n\r\n"

# None of these is an answer: the caller gets a status.
NO_ANSWER: dict[str, tuple[Step, ...]] = {
    "closed at once": ("close",),
    "reset at once": ("reset",),
    "no HTTP": (b"220 mail.example ESMTP\r\n", "close"),
    "HTTP/0.9": (b"<html>hello</html>", "close"),
    "HTTP/2": (b"HTTP/2 200 OK\r\n\r\n" + CHAT, "close"),
    "a header without an end": (JSON + b"x: " + b"a" * 300_000,),
    "a thousand headers": (JSON + b"a: b\r\n" * 1000 + b"\r\n",),
    "a megabyte of headers": (JSON + (b"a: " + b"b" * 1000 + b"\r\n") * 1000 + b"\r\n",),
    "no colon": (JSON + b"nonsense\r\n" + LENGTH + b"\r\n" + CHAT,),
    "a space before the colon": (JSON + LENGTH.replace(b":", b" :") + b"\r\n" + CHAT,),
    "a NUL in a header": (JSON + b"x: a\x00b\r\n" + LENGTH + b"\r\n" + CHAT,),
    "bare line ends": ((JSON + LENGTH + b"\r\n").replace(b"\r\n", b"\n") + CHAT,),
    "two lengths": (JSON + LENGTH + b"content-length: 3\r\n\r\n" + CHAT,),
    "both lengths": (JSON + LENGTH + CHUNKED + b"\r\n" + chunk(CHAT) + b"0\r\n\r\n",),
    "a length with a sign": (JSON + LENGTH.replace(b": ", b": +") + b"\r\n" + CHAT,),
    "a length without an end": (JSON + b"content-length: " + b"9" * 40 + b"\r\n\r\n" + CHAT,),
    "a length too long": (whole(CHAT)[:-5], "close"),
    "a length too short": (whole(CHAT).replace(LENGTH, b"content-length: 20\r\n"),),
    "coded as nobody knows": (JSON + b"transfer-encoding: fly\r\n\r\n" + CHAT, "close"),
    "a chunk of no size": (JSON + CHUNKED + b"\r\nzz\r\n" + CHAT,),
    "a chunk of too large a size": (JSON + CHUNKED + b"\r\nfffffffffffffffff\r\n" + CHAT,),
    "a chunk below nothing": (JSON + CHUNKED + b"\r\n-1\r\n" + CHAT,),
    "a chunk longer than said": (JSON + CHUNKED + b"\r\n5\r\n" + CHAT,),
    "chunk extensions": (JSON + CHUNKED + b"\r\n1;" + b"a" * 300_000,),
    "trailers": (JSON + CHUNKED + b"\r\n" + chunk(CHAT) + b"0\r\n" + b"a: b\r\n" * 20_000,),
    "another protocol": (b"HTTP/1.1 101 Switching\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",),
    "no final answer": (b"HTTP/1.1 103 Early Hints\r\n\r\n" * 5000,),
    "a redirect": (b"HTTP/1.1 302 Found\r\nlocation: http://169.254.169.254/\r\ncontent-length: 0\r\n\r\n",),
    "nothing new": (b"HTTP/1.1 304 Not Modified\r\n\r\n",),
    "no content": (b"HTTP/1.1 204 No Content\r\n\r\n",),
    "a part": (whole(CHAT).replace(b"200 OK", b"206 Partial Content"),),
    "accepted": (whole(b"{}").replace(b"200 OK", b"202 Accepted"),),
    "a status of its own": (whole(b"{}").replace(b"200 OK", b"999 Odd"),),
    "a status without words": (whole(b"{}").replace(b"200 OK", b"500"),),
    "packed though not asked": (whole(CHAT, b"content-encoding: gzip\r\n"),),
    "an error under 200": (whole(ERROR),),
    "an error as the first event": (SSE + chunk(b"data: " + ERROR + b"\n\n") + b"0\r\n\r\n",),
    "a page under 200": (whole(b"<html>502 Bad Gateway</html>"),),
    "an empty object": (whole(b"{}"),),
    "nothing at all": (whole(b""),),
    "garbage events alone": (SSE + chunk(b"data: {<html>\n\n") * 50 + b"0\r\n\r\n",),
    "an empty stream": (SSE + b"0\r\n\r\n",),
    "errors that nobody can read": (whole(b'{"error": "\xff"}'),),
}
# These break off once the caller has some of it.
BREAKS_OFF: dict[str, tuple[Step, ...]] = {
    "closed": (ONE, 0.05, "close"),
    "reset": (ONE, 0.05, "reset"),
    "ended": (ONE, 0.05, b"0\r\n\r\n"),
    "no chunk": (ONE, 0.05, b"zz\r\n"),
    "an error": (ONE, 0.05, chunk(b"data: " + ERROR + b"\n\n"), "close"),
    "a line without an end": (ONE, 0.05, Endless(chunk(b"x" * 2**20))),
    "lines without an end": (ONE, 0.05, Endless(chunk(b"data: " + b"x" * 2**16 + b"\n"))),
    "garbage, then the end": (ONE, 0.05, chunk(b"\xff\xfe\x00 nonsense\n\n" * 200), "close"),
}
# These would go on for as long as the caller waits.
PATIENCE: dict[str, tuple[Step, ...]] = {
    "silent": (30.0,),
    "silent after its head": (SSE, 30.0),
    "a head that drips": (JSON, Endless(b"x", 0.1)),
    "1xx without an end": (Endless(b"HTTP/1.1 102 Processing\r\n\r\n", 0.001),),
    "silent after its first event": (ONE, 30.0),
    "silent within an event": (SSE, chunk(EVENTS[0][:9]), 30.0),
    "events without an end": (ONE, Endless(chunk(said("tick")), 0.01)),
    "comments without an end": (ONE, Endless(chunk(b": ping\n\n"), 0.01)),
    "bytes that drip": (ONE, Endless(chunk(b"x"), 0.05)),
    "a whole answer that drips": (JSON + b"content-length: 9999999\r\n\r\n{", Endless(b" ", 0.02)),
}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_what_is_no_answer_is_a_status(target: Range, stream: bool) -> None:
    for name, steps in NO_ANSWER.items():
        target.upstream.scripts[name] = steps
        answered = target.ask(user=name, stream=stream)
        assert answered.status in (502, 503, 504), (name, answered)
        assert answered.error["type"] in ("upstream_error", "overloaded_error"), (name, answered)
        assert answered.error["message"], name
        target.assert_well()


def test_what_breaks_off_ends_with_an_error_event(target: Range) -> None:
    for name, steps in BREAKS_OFF.items():
        target.upstream.scripts[name] = steps
        answered = target.ask(user=name, stream=True)
        assert answered.status == 200, (name, answered)
        assert answered.content.startswith(EVENTS[0]), name
        assert answered.error["message"], name
        assert b"[DONE]" not in answered.content, name
        target.assert_well()


def test_patience_ends(target: Range) -> None:
    target.upstream.scripts.update(PATIENCE)
    with ThreadPoolExecutor(len(PATIENCE)) as pool:
        asked = zip(SPARES, PATIENCE, strict=False)
        made = pool.map(lambda pair: target.ask(model=pair[0], user=pair[1], stream=True), asked)
        answers = dict(zip(PATIENCE, made, strict=True))
    for name, answered in answers.items():
        assert answered.status in (200, 502, 504), (name, answered.status)
        assert answered.error["code"] in ("upstream_timeout", "upstream_broke_off"), (name, answered.error)
    target.assert_well()
    until(lambda: target.upstream.answering == 0 or None)


def test_a_flood_ends_and_stays_out_of_memory(target: Range) -> None:
    target.upstream.scripts["flood"] = (ONE, Endless(chunk(said("x" * 60_000)), 0.002))
    before = target.process.memory_info().rss
    with target.connected() as made:
        made.sendall(target.request(question(model=SPARES[-1], user="flood", stream=True)))
        last, size_bytes = b"", 0
        while b"upstream_timeout" not in last:
            part = made.recv(2**16)
            assert part
            last, size_bytes = (last + part)[-1000:], size_bytes + len(part)
    assert size_bytes > 2**20
    assert target.process.memory_info().rss - before < 40e6
    target.assert_well()


def test_an_answer_that_is_torn_off_anywhere_is_no_whole_one(target: Range) -> None:
    """At every byte of it; nobody is told that it was all. A stream is all there with its [DONE]."""
    done_ends = STREAM.index(EVENTS[2]) + len(EVENTS[2])
    for stream, answer in ((False, whole(CHAT)), (True, STREAM[:done_ends])):
        for cut in range(len(answer)):
            target.upstream.scripts["cut"] = (answer[:cut], "close" if cut % 2 else "reset")
            answered = target.ask(user="cut", stream=stream)
            assert answered.error["message"], cut
            if answered.status == 200:
                assert stream
                assert answered.events[:-1] == [event[6:-2] for event in EVENTS[: len(answered.events) - 1]], cut
            else:
                assert answered.status == 502, cut
            if cut % 2 or cut == len(answer) - 1:
                assert target.ask().content == CHAT  # two in a row are not yet a broken backend
    target.upstream.scripts["cut"] = (STREAM[:done_ends], "close")
    assert target.ask(user="cut", stream=True).content == b"".join(EVENTS)
    target.assert_well()


# One event in two lines of data, behind a comment.
ODD = b": ping\n\n" + EVENTS[0].replace(b', "', b',\ndata: "', 1)
EVERY = 7


def test_a_stream_that_is_lost_in_an_event_ends_behind_the_last_whole_one(target: Range) -> None:
    """Its server's end looks like an orderly one. Events come in two pieces, and their lines end as they may."""
    stream, endings = ODD + EVENTS[0] + EVENTS[1], set()
    for cut, line_end in product(range(0, len(stream), EVERY), (b"\n", b"\r\n", b"\r")):
        part = stream[: len(stream) - cut].replace(b"\n", line_end)
        first, rest = part[: cut + 1], part[cut + 1 :]
        target.upstream.scripts["lost"] = (UNFRAMED + first, 0.001, rest, "close")
        target.upstream.scripts["ended"] = (SSE + chunk(first) + chunk(rest) + b"0\r\n\r\n",)
        for name in ("lost", "ended") if line_end == b"\n" else ("lost",):
            answered = target.ask(user=name, stream=True)
            if answered.status == 200:
                endings.add(_ending(answered.content))
        assert target.ask().content == CHAT  # three in a row are a broken backend
    assert endings == {"error", "[DONE]"}, "of some, nothing but the end is missing"
    target.assert_well()


def _ending(content: bytes) -> str:
    """How a stream of whole events ends; it ends once."""
    *events, rest = content.split(b"\n\n")
    assert rest == b""
    said = [b"\n".join(line[6:] for line in event.split(b"\n") if line[:1] != b":") for event in events]
    ends = [json.loads(data).get("error") if data != b"[DONE]" else data for data in said if data]
    assert sum(map(bool, ends)) == 1, content
    assert ends[-1], content
    return "[DONE]" if ends[-1] == b"[DONE]" else "error"


ASKED: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 9}
DIALECTS: dict[bytes, dict[str, Any]] = {
    b"/v1/chat/completions": ASKED,
    b"/v1/completions": {"prompt": "Hi"},
    b"/v1/responses": {"input": "Hi"},
    b"/v1/messages": ASKED,
    b"/api/chat": ASKED,
    b"/api/generate": {"prompt": "Hi"},
}


@pytest.mark.parametrize("path", DIALECTS, ids=bytes.decode)
def test_a_stream_that_is_lost_ends_in_one_error_of_its_dialect(target: Range, path: bytes) -> None:
    model = SPARES[list(DIALECTS).index(path)]
    half = EVENTS[0] + EVENTS[1][: len(EVENTS[1]) // 2]
    target.upstream.scripts[model] = (UNFRAMED + half, 0.01, "close")
    content = target.ask(path=path, model=model, stream=True, **DIALECTS[path]).content
    is_lines = path.startswith(b"/api")
    parts = content.splitlines() if is_lines else content.removesuffix(b"\n\n").split(b"\n\n")
    said = [json.loads(part if is_lines else part.partition(b"data: ")[2]) for part in parts]
    if said[-1].get("type") == "response.failed":
        said.pop()  # as OpenAI ends its own
    errors = [one for one in said if one.get("error") or one.get("type") == "error"]
    assert errors == said[-1:]
    assert "in the middle of its answer" in json.dumps(errors)


def test_a_whole_answer_that_is_lost_is_not_passed_as_one(target: Range) -> None:
    """Whichever task it is of: half an object is none, though its connection ended as it should."""
    target.upstream.scripts["lost"] = (
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n" + CHAT[:-1],
        "close",
    )
    more: dict[bytes, dict[str, Any]] = {
        b"/v1/rerank": {"query": "a", "documents": ["b"]},
        b"/v1/moderations": {"input": "a"},
        b"/v1/chat/completions": {},
    }
    for path, fields in more.items():
        answered = target.ask(path=path, user="lost", **fields)
        assert (answered.status, answered.error["code"]) == (502, "upstream_broke_off"), path
        assert target.ask().content == CHAT


@pytest.mark.parametrize(
    "more",
    [
        pytest.param(whole(b'{"choices": [], "smuggled": true}'), id="a second answer"),
        pytest.param(b"HTTP/1.1 200 OK\r\nx: ", id="the beginning of one"),
        pytest.param(b"HTTP/1.1 200 OK\r\ncontent-length: 300\r\n\r\n", id="the head of one"),
        pytest.param(b"H", id="a single byte"),
        pytest.param(b"\r\n\r\n", id="empty lines"),
        pytest.param(b"HTTP/1.1 100 Continue\r\n\r\n", id="a word in between"),
    ],
)
def test_what_stands_behind_an_answer_is_nobodys(target: Range, more: bytes) -> None:
    for stream, answer in ((False, whole(CHAT)), (True, STREAM)):
        target.upstream.scripts["more"] = (answer + more,)
        target.upstream.scripts["more, later"] = (answer, 0.05, more)
        for name in ("more", "more, later") * 3:
            assert target.ask(user=name, stream=stream).status == 200
            until(lambda: target.upstream.answering == 0 or None)  # else it could be the next one's answer
            assert target.ask().content == CHAT
            assert target.ask(stream=True).content == b"".join(EVENTS)
    target.assert_well()


def test_an_answer_before_its_request_is_not_believed_twice(target: Range) -> None:
    target.upstream.greeting = whole(b'{"choices": [], "early": true}')
    try:
        target.upstream.scripts["go"] = ("close",)
        for _ in range(5):
            answered = target.ask(model=SPARES[-2], user="go")
            assert answered.status in (200, 502, 503)
    finally:
        target.upstream.greeting = b""
    for _ in range(5):
        assert target.ask().content == CHAT


def test_answers_that_cannot_be_counted_cost_nothing_but_themselves(target: Range) -> None:
    """They pass with our count in place of theirs, and take no place with them."""
    deep = b"[" * 600 + b"]" * 600
    for usage in (b'{"x": "\xff"}', deep, b'{"prompt_tokens": 1e400}', b'{"completion_tokens": -5}', b"[]", b"1"):
        content = CHAT[:-1] + b', "usage": ' + usage + b"}"
        target.upstream.scripts["odd"] = (whole(content),)
        answered = target.ask(user="odd")
        counted = {"prompt_tokens": 5, "completion_tokens": 1, "total_tokens": 6}
        assert json.loads(answered.content) == json.loads(CHAT) | {"usage": counted}
        stream = SSE + b"".join(map(chunk, EVENTS[:2]))
        odd = b'data: {"choices": [], "usage":' + usage + b"}\n\n"
        target.upstream.scripts["odd"] = (stream + chunk(odd) + chunk(EVENTS[2]) + b"0\r\n\r\n",)
        assert EVENTS[1] in target.ask(user="odd", stream=True).content
        target.assert_well()


def test_headers_of_a_backend_are_not_ours(target: Range) -> None:
    evil = b"set-cookie: a=b\r\nx-request-id: evil\r\nlocation: //evil\r\nx-millrace-lane: cloud\r\n"
    kinds = (
        b"application/json; a=\xff\x80",
        b"application/json\tx",
        b"text/html",
        b"application/json" + b"x" * 60_000,
    )
    for kind in kinds:
        head = whole(CHAT, evil).replace(b"application/json", kind, 1)
        target.upstream.scripts["evil"] = (head,)
        answered = target.ask(user="evil")
        assert not {"set-cookie", "location"} & answered.headers.keys()
        assert "evil" not in answered.headers["x-request-id"]
        assert answered.headers.get("x-millrace-lane") in (None, "pool")
    target.assert_well()


def test_a_reason_that_quotes_a_backend_is_one_header(target: Range) -> None:
    words = json.dumps(
        {"error": {"message": "a\r\nx-evil: 1\r\n\r\nb\u0085\u2028\x00", "code": "c\r\nd: e"}}
    ).encode()
    target.upstream.scripts["words"] = (whole(words).replace(b"200 OK", b"500 Oh"),)
    for _ in range(2):
        answered = target.ask(user="words")
        assert answered.status == 502
        assert "x-evil" not in answered.headers
    target.assert_well()
