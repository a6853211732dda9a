"""Send N streams to one OpenAI-compatible endpoint, record when each piece of text came, and summarize.

`python -m bench.streams` reads a Job as JSON from stdin and writes the answers as JSON. It runs beside the
measured engine, on any core and in any namespace, and uses only sockets.
"""

import http.client
import statistics
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

CONNECT_TIMEOUT_S = 30.0
STREAMS_MAX = 64


class Job(Struct, frozen=True, kw_only=True):
    """What to ask: every prompt at once, each for `tokens` tokens."""

    url: str
    api_key: str
    model: str
    prompts: list[list[int]]
    tokens: int
    timeout_s: float
    extra: dict[str, Any] = {}


class Answer(Struct, frozen=True, kw_only=True):
    """One stream. Times are the client's monotonic clock. `error` is empty on success.

    `pieces` has the length of the text that came at each of `events_s`.
    """

    sent_s: float = 0.0
    events_s: list[float] = []
    pieces: list[int] = []
    text: str = ""
    tokens: int = 0
    error: str = ""


class Speeds(Struct, frozen=True, kw_only=True):
    """The figures of a job's streams together.

    `stream_tokens_per_s` is the median stream's rate from its first text on. `decode_tokens_per_s` counts what all
    streams received after each had begun.
    """

    ttft_ms: float
    stream_tokens_per_s: float
    decode_tokens_per_s: float
    gap_p50_ms: float
    gap_p99_ms: float


def summarise(answers: Sequence[Answer]) -> Speeds:
    """Return the speeds of completed streams. An event may contain several tokens: its text tells how many."""
    begun_s = max(answer.events_s[0] for answer in answers)
    ended_s = max(answer.events_s[-1] for answer in answers)
    late = sum(_tokens_after(answer, begun_s) for answer in answers)
    gaps_ms = sorted(
        1000 * (later - earlier)
        for answer in answers
        for earlier, later in zip(answer.events_s, answer.events_s[1:], strict=False)
    )
    return Speeds(
        ttft_ms=statistics.median(1000 * (answer.events_s[0] - answer.sent_s) for answer in answers),
        stream_tokens_per_s=statistics.median(
            _tokens_after(answer, answer.events_s[0]) / (answer.events_s[-1] - answer.events_s[0])
            for answer in answers
        ),
        decode_tokens_per_s=late / max(1e-9, ended_s - begun_s),
        gap_p50_ms=gaps_ms[len(gaps_ms) // 2],
        gap_p99_ms=gaps_ms[min(len(gaps_ms) - 1, int(0.99 * len(gaps_ms)))],
    )


def _tokens_after(answer: Answer, moment_s: float) -> float:
    """Return how many tokens came after a moment at which the stream had begun."""
    pieces = zip(answer.events_s, answer.pieces, strict=True)
    late = sum(characters for at, characters in pieces if at > moment_s)
    return late * answer.tokens / len(answer.text)


def ask_all(job: Job) -> list[Answer]:
    """Use one thread and one connection per stream. All requests are sent together."""
    together = threading.Barrier(len(job.prompts))
    answers = [Answer(error="did not end in time")] * len(job.prompts)

    def run(number: int) -> None:
        try:
            answers[number] = _ask(job, job.prompts[number], together)
        except (OSError, http.client.HTTPException, msgspec.DecodeError, threading.BrokenBarrierError) as error:
            answers[number] = Answer(error=f"{type(error).__name__}: {error}")

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(len(job.prompts))]
    for thread in threads:
        thread.start()
    deadline_s = time.monotonic() + job.timeout_s + CONNECT_TIMEOUT_S
    for thread in threads:
        thread.join(max(0.0, deadline_s - time.monotonic()))
    return answers


def _ask(job: Job, prompt: list[int], together: threading.Barrier) -> Answer:
    url = urlsplit(job.url)
    connection = http.client.HTTPConnection(url.netloc, timeout=job.timeout_s)
    body = {
        "model": job.model,
        "prompt": prompt,
        "max_tokens": job.tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    headers = {"content-type": "application/json", "authorization": f"Bearer {job.api_key}"}
    try:
        connection.connect()
        together.wait(CONNECT_TIMEOUT_S)
        sent_s = time.monotonic()
        content = msgspec.json.encode(body | job.extra)
        connection.request("POST", f"{url.path}/completions", content, headers)
        return _read(connection.getresponse(), sent_s)
    finally:
        connection.close()


def _read(response: http.client.HTTPResponse, sent_s: float) -> Answer:
    if response.status != 200:
        return Answer(sent_s=sent_s, error=f"HTTP {response.status}: {response.read(300)!r}")
    events_s: list[float] = []
    pieces: list[str] = []
    tokens, is_whole = 0, False
    while line := response.readline():
        now_s = time.monotonic()
        if not line.startswith(b"data:"):
            continue
        if line[5:].strip() == b"[DONE]":
            is_whole = True
            break
        event = msgspec.json.decode(line[5:])
        if error := event.get("error"):
            return Answer(sent_s=sent_s, error=str(error)[:300])
        tokens = (event.get("usage") or {}).get("completion_tokens", tokens)
        piece = "".join(choice.get("text") or "" for choice in event.get("choices", ()))
        if piece:
            events_s.append(now_s)
            pieces.append(piece)
    if not is_whole or len(events_s) < 2:
        end = "" if is_whole else ", and no end"
        return Answer(sent_s=sent_s, error=f"{len(events_s)} pieces of text{end}")
    return Answer(
        sent_s=sent_s,
        events_s=events_s,
        pieces=[len(piece) for piece in pieces],
        text="".join(pieces),
        tokens=tokens or len(events_s),
    )


def main() -> None:
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=Job)
    if not 0 < len(job.prompts) <= STREAMS_MAX:
        sys.exit(f"1 to {STREAMS_MAX} streams")
    sys.stdout.buffer.write(msgspec.json.encode(ask_all(job)))


if __name__ == "__main__":
    main()
