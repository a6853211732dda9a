"""Heads and bodies that could be read in two ways, or are none: a 4xx, and the next request is served."""

import contextlib
import itertools
import json
import re
import socket
import threading
import time

import pytest

from tests.fakes.broken_upstream import CHAT, EVENTS, SSE, chunk
from tests.gateway.hostile.range import Range, everything, question, reset
from tests.gateway.http.edges import Answered
from tests.gateways import until

BODY = question()
LENGTH = b"content-length: %d\r\n" % len(BODY)
CHUNKED = b"transfer-encoding: chunked\r\n"
CHUNKS = b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)
SMUGGLED = b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n"

# What follows the head's first lines, and the whole body.
REFUSED: dict[str, bytes] = {
    "both lengths": LENGTH + CHUNKED + b"\r\n" + CHUNKS,
    "both lengths, turned round": CHUNKED + LENGTH + b"\r\n" + CHUNKS,
    "two lengths": LENGTH + b"content-length: 3\r\n\r\n" + BODY,
    "one length twice": LENGTH + LENGTH + b"\r\n" + BODY,
    "a list of lengths": b"content-length: %d, %d\r\n\r\n" % (len(BODY), len(BODY)) + BODY,
    "a length with a sign": b"content-length: +%d\r\n\r\n" % len(BODY) + BODY,
    "a length below nothing": b"content-length: -1\r\n\r\n" + BODY,
    "a length in hex": b"content-length: 0x10\r\n\r\n" + BODY,
    "a length as Python reads it": b"content-length: 1_0\r\n\r\n" + BODY,
    "a length with a space": b"content-length: 1 0\r\n\r\n" + BODY,
    "a length of nothing": b"content-length: \r\n\r\n" + BODY,
    "a length beyond numbers": b"content-length: " + b"9" * 40 + b"\r\n\r\n" + BODY,
    "a length beyond the bound": b"content-length: 99999999999\r\n\r\n" + BODY,
    "identity, then chunked": b"transfer-encoding: identity\r\n" + CHUNKED + b"\r\n" + CHUNKS,
    "chunked, then identity": CHUNKED + b"transfer-encoding: identity\r\n\r\n" + CHUNKS,
    "chunked twice": CHUNKED + CHUNKED + b"\r\n" + CHUNKS,
    "chunked in a list": b"transfer-encoding: chunked, identity\r\n\r\n" + CHUNKS,
    "chunked and a comma": b"transfer-encoding: chunked,\r\n\r\n" + CHUNKS,
    "xchunked": b"transfer-encoding: xchunked\r\n\r\n" + CHUNKS,
    "chunked in quotes": b'transfer-encoding: "chunked"\r\n\r\n' + CHUNKS,
    "chunked behind a tab": b"transfer-encoding: \x0bchunked\r\n\r\n" + CHUNKS,
    "chunked on the next line": b"transfer-encoding:\r\n chunked\r\n\r\n" + CHUNKS,
    "chunked with a NUL": b"transfer-encoding: chunked\x00\r\n\r\n" + CHUNKS,
    "a space before the colon": b"transfer-encoding : chunked\r\n\r\n" + CHUNKS,
    "a length on a line of its own": b"content-length:\r\n %d\r\n\r\n" % len(BODY) + BODY,
    "a name with a NUL": LENGTH + b"x\x00y: 1\r\n\r\n" + BODY,
    "a name with high bytes": LENGTH + b"x\xff: 1\r\n\r\n" + BODY,
    "no name": LENGTH + b": 1\r\n\r\n" + BODY,
    "no colon": LENGTH + b"nonsense\r\n\r\n" + BODY,
    "a folded line": LENGTH + b"x: a\r\n b\r\n\r\n" + BODY,
    "CR alone": LENGTH + b"x: a\rtransfer-encoding: chunked\r\n\r\n" + BODY,
    "LF alone": LENGTH + b"x: a\ntransfer-encoding: chunked\r\n\r\n" + BODY,
    "LF for all": (LENGTH + b"\r\n").replace(b"\r\n", b"\n") + BODY,
    "two hosts": b"host: y\r\n" + LENGTH + b"\r\n" + BODY,
    "two keys": b"authorization: Bearer x\r\n" + LENGTH + b"\r\n" + BODY,
    "two content types": b"content-type: a/b\r\ncontent-type: c/d\r\n" + LENGTH + b"\r\n" + BODY,
    "packed": b"content-encoding: gzip\r\n" + LENGTH + b"\r\n" + BODY,
    "packed twice": b"content-encoding: br, gzip\r\n" + LENGTH + b"\r\n" + BODY,
    "a chunk of no size": CHUNKED + b"\r\nzz\r\n" + BODY,
    "a chunk below nothing": CHUNKED + b"\r\n-1\r\n" + BODY,
    "a chunk in C": CHUNKED + b"\r\n0x%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY),
    "a chunk with a sign": CHUNKED + b"\r\n+%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY),
    "a chunk beyond numbers": CHUNKED + b"\r\n" + b"f" * 40 + b"\r\n" + BODY,
    "a chunk that goes on": CHUNKED + b"\r\n%x\r\n%bXX0\r\n\r\n" % (len(BODY), BODY),
    "chunks with LF alone": CHUNKED + b"\r\n" + CHUNKS.replace(b"\r\n", b"\n"),
    "an extension with LF": CHUNKED + b"\r\n%x;a\n%b\r\n0\r\n\r\n" % (len(BODY), BODY),
    "an extension without an end": CHUNKED + b"\r\n%x;a=" % len(BODY) + b"b" * 200_000,
    "trailers without an end": CHUNKED + b"\r\n" + CHUNKS[:-2] + b"x: " + b"a" * 200_000,
    "many trailers": CHUNKED + b"\r\n" + CHUNKS[:-2] + b"a: b\r\n" * 3000 + b"\r\n",
    "a length in a trailer": CHUNKED + b"\r\n" + CHUNKS[:-2] + b"content-length: 3\r\n\r\n",
    "a large header": LENGTH + b"x: " + b"a" * 100_000 + b"\r\n\r\n" + BODY,
    "many headers": LENGTH + b"x: a\r\n" * 1000 + b"\r\n" + BODY,
    "a large body": CHUNKED + b"\r\n" + (b"100000\r\n" + b" " * 2**20 + b"\r\n") * 20 + b"0\r\n\r\n",
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_can_be_read_in_two_ways_is_refused(target: Range, name: str) -> None:
    raw = target.say(target.head(b"")[:-2] + REFUSED[name] + SMUGGLED)
    assert raw.startswith(b"HTTP/1.1 4"), raw[:200]
    assert raw.count(b"HTTP/1.1 ") == 1
    answered = Answered.read_from(raw)
    assert answered.headers["connection"] == "close"
    assert answered.error["type"] == "invalid_request_error"
    assert target.ask().content == CHAT


FIRST_LINES: dict[str, tuple[bytes, set[int]]] = {
    "no host": (b"POST /v1/chat/completions HTTP/1.1\r\n", {400}),
    "version 0.9": (b"POST /v1/chat/completions HTTP/0.9\r\nhost: x\r\n", {400}),
    "version 1.2": (b"POST /v1/chat/completions HTTP/1.2\r\nhost: x\r\n", {400}),
    "version 2": (b"POST /v1/chat/completions HTTP/2.0\r\nhost: x\r\n", {400}),
    "chunks in 1.0": (b"POST /v1/chat/completions HTTP/1.0\r\nhost: x\r\ntransfer-encoding: chunked\r\n", {400}),
    "no version": (b"POST /v1/chat/completions\r\nhost: x\r\n", {400}),
    "preface of HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", {400}),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 64, {400}),
    "a tunnel": (b"CONNECT evil:443 HTTP/1.1\r\nhost: x\r\n", {400}),
    "a tunnel to us": (b"CONNECT /v1/chat/completions HTTP/1.1\r\nhost: x\r\n", {400}),
    "a method of its own": (b"FLY /v1/chat/completions HTTP/1.1\r\nhost: x\r\n", {400}),
    "trace": (b"TRACE / HTTP/1.1\r\nhost: x\r\n", {400, 404, 405}),
    "a target with a NUL": (b"POST /v1/chat\x00 HTTP/1.1\r\nhost: x\r\n", {400}),
    "a target with high bytes": (b"POST /v1/chat/\xff\xfe HTTP/1.1\r\nhost: x\r\n", {400}),
    "a target with a space": (b"POST /v1/chat completions HTTP/1.1\r\nhost: x\r\n", {400}),
    "a target that is no address": (b"POST http://[ HTTP/1.1\r\nhost: x\r\n", {400}),
    "a target without an end": (b"POST /" + b"a" * 100_000 + b" HTTP/1.1\r\nhost: x\r\n", {431}),
    "another spelling": (b"POST /v1/chat%2Fcompletions HTTP/1.1\r\nhost: x\r\n", {404}),
    "dots": (b"POST /v1/../v1/chat/completions HTTP/1.1\r\nhost: x\r\n", {404}),
    "two slashes": (b"POST //v1/chat/completions HTTP/1.1\r\nhost: x\r\n", {404}),
}


@pytest.mark.parametrize("name", FIRST_LINES)
def test_first_lines_of_no_request_are_refused(target: Range, name: str) -> None:
    line, statuses = FIRST_LINES[name]
    key = b"authorization: Bearer %b\r\nconnection: close\r\n" % target.gateway.api_key.encode()
    more = b"" if b"chunked" in line else LENGTH
    raw = target.say(line + key + more + b"\r\n" + (BODY if more else CHUNKS))
    assert int(raw.split()[1]) in statuses, raw[:300]
    assert raw.count(b"HTTP/1.1 ") == 1
    assert target.ask().content == CHAT


HOSTS = (b"[", b"a b", b"evil.com/", b"\xff\xfe", b"a:b:c", b"a:99999999", b"", b"x" * 5000, b"::", b"user@evil")
PATHS = (
    b"/nothing",
    b"/console",
    b"/v1/models/",
    b"/healthz/",
    b"/v1/chat%2Fcompletions",
    b"/console/static/..%2f..%2f..%2fetc/passwd",
    b"/console/static/%2e%2e/%2e%2e/etc/passwd",
    b"/console/static//etc/passwd",
    b"/console/static/a%00.css",
    b"/v1/models/..%2f..%2fetc%2fpasswd",
    b"/v1/models/a%0d%0aset-cookie:%20a=b",
    b"/v1/models/%ED%A0%80%00",
    b"/v1/responses/..%2f..%2fetc%2fpasswd",
    b"/v1/responses/%00",
    b"/v1/responses/%ff?include=%ff",
    b"/v1/files/..%2f..%2fetc%2fpasswd",
    b"/v1/files/%00/content",
    b"/v1/batches/%00%0d%0a",
    b"/v1/batches?after=%00&limit=-1",
    b"/v1/files?after=%ff&limit=99999999999999999999",
    b"/v1/models?" + b"a=b&" * 5000,
    b"http://evil/v1/models/x",
    b"http://u:p@evil:99/v1/models/x?x#y",
)


@pytest.mark.parametrize("path", PATHS)
def test_no_path_or_host_is_our_fault(target: Range, path: bytes) -> None:
    for host in (b"x", *HOSTS):
        head = target.head(b"connection: close\r\n", path, b"GET").replace(b"host: x", b"host: " + host, 1)
        raw = target.say(head)
        assert int(raw.split()[1]) < 500, (host, raw[:300])
        assert b"\r\nset-cookie" not in raw.lower()
        assert b"root:" not in raw


@pytest.mark.parametrize("offer", [b"h2c", b"websocket", b"nonsense", b"h2c, websocket"])
def test_another_protocol_is_declined_and_the_body_read(target: Range, offer: bytes) -> None:
    """Java's own client offers h2c with every request; what it sends then is a body, not another request."""
    upgrade = b"connection: upgrade, http2-settings\r\nupgrade: %b\r\nhttp2-settings: AAMAAABkAAQAAP__\r\n" % offer
    asked = target.request(BODY, upgrade)
    smuggling = target.request(SMUGGLED, upgrade)
    last = target.request(BODY, b"connection: close\r\n")
    for parts in (
        [asked + smuggling + asked + last],
        [asked[:-10], asked[-10:] + smuggling[:-20], smuggling[-20:], last],
    ):
        with target.connected() as made:
            for part in parts:
                made.sendall(part)
                time.sleep(0.02)
            raw = everything(made)
        statuses = re.findall(rb"HTTP/1.1 (\d+) ", raw)
        assert statuses[:2] == [b"200", b"400"]
        assert set(statuses[2:]) == {b"200"}
        assert b'"status":"ok"' not in raw


def test_expectations_are_met_once(target: Range) -> None:
    with target.connected() as made:
        made.sendall(target.head(b"expect: 100-continue\r\nconnection: close\r\n" + LENGTH))
        assert made.recv(1000) == b"HTTP/1.1 100 Continue\r\n\r\n"
        made.sendall(BODY)
        assert Answered.read_from(everything(made)).content == CHAT
    at_once = target.say(target.request(BODY, b"expect: 100-continue\r\nconnection: close\r\n"))
    assert at_once.count(b"100 Continue") <= 1
    assert at_once.endswith(CHAT)
    refused = target.say(target.head(b"expect: 100-continue\r\ncontent-length: 99999999\r\n"))
    assert refused.startswith(b"HTTP/1.1 413 ")
    assert target.ask().content == CHAT


def test_bodies_without_end_are_refused_before_anybody_knows_who_asks(target: Range) -> None:
    before = target.process.memory_info().rss
    for method, path in (
        (b"POST", b"/admin/users"),
        (b"PUT", b"/admin/quotas"),
        (b"POST", b"/console/login"),
        (b"POST", b"/console/login/password"),
        (b"POST", b"/v1/files"),
        (b"POST", b"/v1/batches"),
        (b"POST", b"/v1/messages/count_tokens"),
        (b"POST", b"/v1/chat/completions"),
        (b"POST", b"/api/show"),
        (b"GET", b"/healthz"),
    ):
        for framing in (b"content-length: 99000000000\r\n", CHUNKED):
            head = b"%b %b HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n%b\r\n" % (
                method,
                path,
                framing,
            )
            piece = b" " * 2**20 if framing != CHUNKED else b"100000\r\n" + b" " * 2**20 + b"\r\n"
            with target.connected() as made:
                with contextlib.suppress(OSError):
                    for part in (head, *[piece] * 50):
                        made.sendall(part)
                raw = made.recv(1000)
            assert path == b"/healthz" or raw.startswith(b"HTTP/1.1 4"), (path, raw)
    assert target.process.memory_info().rss - before < 40e6
    target.assert_well()


def test_a_flood_of_requests_ahead_of_their_answers_is_cut(target: Range) -> None:
    target.upstream.scripts["slow"] = (0.3, b'HTTP/1.1 200 OK\r\ncontent-length: 14\r\n\r\n{"choices":[]}')
    slow = target.request(question(user="slow"))
    raw = target.say(slow + SMUGGLED * 5000)
    assert raw.count(b"HTTP/1.1 200") <= 20
    get = b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n"
    assert target.say(get * 5000).count(b"HTTP/1.1 200") <= 20
    target.assert_well()


def test_a_whole_crowd_that_hangs_up_leaves_nothing(target: Range) -> None:
    """300 of them, at every stage, by an end, a half end or a reset; upstream work stops, nothing stays."""
    target.upstream.scripts["stream"] = (SSE + chunk(EVENTS[0]), 90.0)
    target.upstream.scripts["silent"] = (90.0,)
    target.assert_well()
    before = target.process.num_fds()
    body = question(user="stream", stream=True)
    for at in range(3):
        made = [socket.create_connection(("127.0.0.1", target.port), timeout=60) for _ in range(100)]
        for number, one in enumerate(made):
            user = "silent" if number % 3 == 0 else "stream"
            raw = target.request(question(user=user, stream=number % 2 == 0))
            one.sendall(raw[: len(raw) * number // 60] if number < 60 else target.request(body))
        until(lambda: target.upstream.answering >= 30 or None)
        for number, one in enumerate(made):
            if (number + at) % 3 == 0:
                reset(one)
            elif (number + at) % 3 == 1:
                one.shutdown(socket.SHUT_WR)
            else:
                one.close()
        until(lambda: target.upstream.answering == 0 or None)
        for one in made:
            one.close()
    target.assert_well()
    until(lambda: target.process.num_fds() <= before + 5 or None)


def test_wrong_keys_by_the_thousand(target: Range) -> None:
    before = target.process.memory_info().rss
    statuses = set()
    with target.connected() as made:
        for number in range(3000):
            key = b"host: x\r\nauthorization: Bearer mr-%d\r\ncontent-length: 2\r\n\r\n{}" % number
            made.sendall(b"POST /v1/chat/completions HTTP/1.1\r\n" + key)
            raw = b""
            while b"}}" not in raw:
                raw += made.recv(4096)
            statuses.add(int(raw.split()[1]))
    assert statuses == {401, 429}
    assert target.process.memory_info().rss - before < 20e6
    target.assert_well()


def test_keys_of_all_shapes(target: Range) -> None:
    for key in (b"\xff\xfe", b"mr-" + b"x" * 60_000, b"mr-\x80", b"", b" ", b"%00", b"mr-' OR 1=1 --", b"null"):
        for name in (b"authorization: Bearer ", b"x-api-key: ", b"authorization: Basic "):
            head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n%b%b\r\nconnection: close\r\n%b\r\n"
            raw = target.say(head % (name, key, LENGTH) + BODY)
            assert int(raw.split()[1]) in (401, 429), (name, key[:20], raw[:200])
    target.assert_well()


def test_slow_heads_and_bodies_hold_nobody_up(target: Range) -> None:
    """While 200 clients drip, everybody else is served; those without a head in time are let go."""
    made = [socket.create_connection(("127.0.0.1", target.port), timeout=60) for _ in range(200)]
    stop = threading.Event()
    raw = target.request(BODY)
    dripping = threading.Thread(target=_drip, args=(made, raw, stop))
    dripping.start()
    try:
        for _ in range(20):
            assert target.ask().content == CHAT
        assert dripping.is_alive(), "they still drip"
        silent = made[-1]
        silent.settimeout(60)
        assert everything(silent) == b""  # it never said anything
    finally:
        stop.set()
        dripping.join()
        for one in made:
            one.close()
    target.assert_well()


def _drip(made: list[socket.socket], raw: bytes, stop: threading.Event) -> None:
    """A byte at a time to all but the last, until the end; every second one got its head at once."""
    for number, one in enumerate(made[:-1]):
        if number % 2:
            one.sendall(raw[:-20])
    for at in itertools.count():
        for one in made[:-1:2]:
            with contextlib.suppress(OSError):  # It was let go.
                one.sendall(raw[at % len(raw) :][:1])
        if stop.wait(0.5):
            return


FORM = b'--b\r\ncontent-disposition: form-data; name="%b"%b\r\n\r\n%b\r\n'
FORMS: dict[str, bytes] = {
    "no boundary": b"hello",
    "many parts": FORM % (b"x", b"", b"1") * 50_000 + b"--b--\r\n",
    "a huge name": FORM % (b"n" * 500_000, b"", b"1") + b"--b--\r\n",
    "a huge boundary": b"--" + b"b" * 500_000 + b"\r\n",
    "no end": FORM % (b"model", b"", b"m"),
    "no blank line": b'--b\r\ncontent-disposition: form-data; name="model"',
    "no name": b"--b\r\ncontent-disposition: form-data\r\n\r\nm\r\n--b--\r\n",
    "headers without an end": b"--b\r\n" + b"x: y\r\n" * 50_000 + b"\r\nm\r\n--b--\r\n",
    "a model twice": FORM % (b"model", b"", b"m") * 2 + b"--b--\r\n",
    "a model that is no text": FORM % (b"model", b"", b"\xff\xfe\x00") + b"--b--\r\n",
    "a model as a file": FORM % (b"model", b'; filename="m"', b"m") + b"--b--\r\n",
    "a path for a file": FORM % (b"file", b'; filename="../../etc/passwd"', b"x") + b"--b--\r\n",
    "slow to search": (b"--b\r\n" + b"content-disposition: form-data;" * 120 + b"\r\n\r\nx\r\n") * 100,
    "nothing but dashes": b"--" * 500_000,
}


@pytest.mark.parametrize("name", FORMS)
def test_forms_of_all_shapes(target: Range, name: str) -> None:
    for path in (b"/v1/audio/transcriptions", b"/v1/images/edits", b"/v1/files"):
        for kind in (
            b"multipart/form-data; boundary=b",
            b"multipart/form-data",
            b"multipart/form-data; boundary=other",
        ):
            more = b"connection: close\r\ncontent-type: %b\r\n" % kind
            raw = target.say(target.request(FORMS[name], more, path))
            assert 400 <= int(raw.split()[1]) < 500, raw[:300]
    assert target.ask().content == CHAT


BODIES: dict[str, bytes] = {
    "10,000 stop strings": question(stop=["x" * 10] * 10_000),
    "deep": b'{"model": "m", "messages": ' + b"[" * 100_000,
    "deep and whole": b'{"model": "m", "x": ' + b"[" * 100_000 + b"]" * 100_000 + b', "messages": []}',
    "a giant number": b'{"model": "m", "messages": [], "seed": ' + b"9" * 500_000 + b"}",
    "a giant exponent": BODY[:-1] + b', "temperature": 1e999999999}',
    "a number that is none": BODY[:-1] + b', "max_tokens": 1e5000}',
    "NUL": BODY[:-1] + b"\x00}",
    "invalid UTF-8": BODY.replace(b"Hi", b"\xff\xfe"),
    "half a pair": BODY.replace(b"Hi", b"\\ud800"),
    "a mark in front": b"\xef\xbb\xbf" + BODY,
    "another coding": BODY.decode().encode("utf-16"),
    "two objects": BODY + BODY,
    "a model with a line end": question(model="m\r\nx-evil: 1"),
    "a model with NUL": question(model="m\x00"),
    "a long model": question(model="m" * 100_000),
    "a path for a model": question(model="../../etc/passwd"),
    "a model that turns text round": question(model="m\u202e\u2028"),
    "an empty object": b"{}",
    "spaces": b" " * 500_000,
    "many fields": json.dumps({f"f{number}": number for number in range(100_000)}).encode(),
}


@pytest.mark.parametrize("name", BODIES)
def test_bodies_of_all_shapes(target: Range, name: str) -> None:
    for path in (b"/v1/chat/completions", b"/v1/messages", b"/v1/responses", b"/api/chat", b"/v1/embeddings"):
        raw = target.say(target.request(BODIES[name], b"connection: close\r\n", path))
        answered = Answered.read_from(raw)
        assert answered.status < 500, raw[:300]
        # Others may leave out what they do not know.
        assert answered.status >= 400 or path == b"/api/chat", raw[:300]
        assert b"x-evil" not in raw.partition(b"\r\n\r\n")[0]
    assert target.ask().content == CHAT


def test_names_said_twice_are_refused_where_they_decide(target: Range) -> None:
    """Backends differ in whether the first or the last of two counts; policy must not depend on it."""
    twice = BODY[:-1] + b', "mod\\u0065l": "other", "model": "m"}'
    for body in (twice, BODY[:-1] + b', "model": "m"}'):
        answered = Answered.read_from(target.say(target.request(body, b"connection: close\r\n")))
        assert answered.status == 400, answered
        assert answered.error["param"] == "model"


@pytest.mark.parametrize(
    "path", [b"/v1/models/", b"/admin/keys/", b"/console/", b"/console/static", b"/console/login/"]
)
def test_nobody_is_sent_to_the_host_that_a_request_names(target: Range, path: bytes) -> None:
    head = b"GET %b HTTP/1.1\r\nhost: elsewhere.example\r\nconnection: close\r\n\r\n" % path
    answered = Answered.read_from(target.say(head))
    assert answered.headers.get("location", "/console") == "/console"
    assert "elsewhere.example" not in str(answered.headers)
