"""Run `make demo`: one gateway and two nodes on this machine answer one streamed chat; then print the facts as
JSON.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from openai import DefaultHttpxClient, OpenAI

from demo.processes import end_on_signals, first_line, running
from gateway.api.admin import HEADER
from runtime.data_folder import DataFolder

MODEL = Path(__file__).parent / "model"
QUESTION = "What is a river?"
NODES = 2
BOOKED_TIMEOUT_S = 10.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m demo", description=__doc__)
    parser.add_argument("--once", action="store_true", help="stop after the answer")
    parser.add_argument("--question", default=QUESTION)
    parser.add_argument("--port", type=int, default=0)
    given = parser.parse_args()
    end_on_signals()
    with (
        tempfile.TemporaryDirectory(prefix="millrace-demo-") as folder,
        _gateway(Path(folder), given.port) as facts,
    ):
        summary = _ask(facts, Path(folder), given.question)
        if not given.once:
            _explain(facts)
        print(json.dumps(summary), flush=True)
        if not given.once:
            _wait_for_ctrl_c()
    return 0


@contextmanager
def _gateway(folder: Path, port: int) -> Iterator[dict[str, Any]]:
    """Run `millrace up` as any user would. Stop it with SIGTERM at the end, or kill it if that fails."""
    command = ["gateway", "up", "--json", "--model", str(MODEL), "--nodes", str(NODES)]
    print(f"starting a gateway and {NODES} nodes, each with half of the model ...", flush=True)
    command += ["--port", str(port), "--data-dir", str(folder)]
    with running(command, {"MILLRACE_LOG__LEVEL": "error"}) as process:
        yield json.loads(first_line(process, "the gateway"))


def _ask(facts: dict[str, Any], folder: Path, question: str) -> dict[str, Any]:
    """Send one streamed chat completion through the official client, and print the answer as it comes."""
    # An environment's proxy cannot reach this machine's loopback, and must not see the key.
    direct = DefaultHttpxClient(trust_env=False)
    client = OpenAI(base_url=facts["base_url"], api_key=facts["api_key"], http_client=direct)
    cluster = _admin(folder, "/admin/cluster")
    print(f"\nyou:   {question}\nmodel: ", end="", flush=True)
    began = time.perf_counter()
    raw = client.chat.completions.with_raw_response.create(
        model=MODEL.name,
        messages=[{"role": "user", "content": question}],
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    answer, usage, first_s, last_s = "", None, 0.0, 0.0
    for chunk in raw.parse():
        text = chunk.choices[0].delta.content if chunk.choices else None
        if text:
            first_s = first_s or time.perf_counter() - began
            last_s = time.perf_counter() - began
            answer += text
            print(text, end="", flush=True)
        usage = chunk.usage or usage
    assert usage
    print("\n")
    record = _booked(folder, raw.headers["x-request-id"])
    stages = [{"node": node["node"], "layers": node["layers"]} for node in cluster["nodes"] if node["layers"]]
    for stage in stages:
        print(f"{stage['node']} computed layers {stage['layers'][0]}-{stage['layers'][1]}")
    print(f"route: {raw.headers['x-millrace-reason']}")
    print(
        f"ledger: {usage.prompt_tokens} + {usage.completion_tokens} tokens, ledger event {record['event_seq']}\n"
    )
    return {
        "answer": answer,
        "lane": raw.headers["x-millrace-lane"],
        "stages": stages,
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "ttft_ms": round(1000 * first_s, 1),
        "tokens_per_second": round((usage.completion_tokens - 1) / max(1e-9, last_s - first_s), 1),
        "ledger_event": record["event_seq"],
    }


def _booked(folder: Path, request_id: str) -> dict[str, Any]:
    """Return the request's row, which is written just after its answer."""
    deadline_s = time.monotonic() + BOOKED_TIMEOUT_S
    while time.monotonic() < deadline_s:
        found = [row for row in _admin(folder, "/admin/requests") if row["request_id"] == request_id]
        if found:
            return dict(found[0])
        time.sleep(0.05)
    sys.exit(f"request {request_id} was not booked within {BOOKED_TIMEOUT_S:.0f} s")


def _admin(folder: Path, path: str) -> Any:
    running = DataFolder(folder).read_running()
    assert running
    url = running["base_url"].removesuffix("/v1") + path
    headers = {HEADER: running["admin_token"]}
    return httpx.get(url, headers=headers, timeout=10, trust_env=False).raise_for_status().json()


def _explain(facts: dict[str, Any]) -> None:
    print(f"base URL  {facts['base_url']}")
    print(f"API key   {facts['api_key']}")
    print(f"console   {facts['console_url']}")
    print("Any OpenAI client can use these now. Ctrl-C ends the demo.\n")


def _wait_for_ctrl_c() -> None:
    try:
        while True:
            time.sleep(3600)
    except KeyboardInterrupt:
        print("\nstopping", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
