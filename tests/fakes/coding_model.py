"""A fake backend whose model works for coding agents: it writes the file that it is asked for, and says so.

It calls the tool that an agent has for writing files, or its shell. First it calls a tool of a group, or looks for
further tools, if the agent has such: what comes back must be a result, whatever it says.
"""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

from aiohttp import web

from tests.fakes.provider_server import ProviderServer, Received, running

Json = dict[str, Any]

MODEL = "coder"
CONTENT = "The mill wheel turns."
DONE = "The file is written."
_FILE = re.compile(r"/[\w./-]*mill\.txt")
_call_ids = count(1)


def _shell(path: str) -> str:
    return f"printf '{CONTENT}' > {path}"


def _patch(path: str) -> str:
    return f"*** Begin Patch\n*** Add File: {path}\n+{CONTENT}\n*** End Patch\n"


_BEFORE: dict[str, Json] = {
    "multi_agent_v1__close_agent": {"target": "none"},
    "ToolSearch": {"query": "select:WebFetch", "max_results": 1},
}
_WRITING: dict[str, Callable[[str], Json]] = {
    "Write": lambda path: {"file_path": path, "content": CONTENT},
    "write": lambda path: {"filePath": path, "content": CONTENT},
    "write_file": lambda path: {"file_path": path, "content": CONTENT},
    "apply_patch": lambda path: {"input": _patch(path)},
    "functions__exec": lambda path: {
        "input": f"text(await tools.exec_command({json.dumps({'cmd': _shell(path)})}))"
    },
    "exec_command": lambda path: {"cmd": _shell(path)},
}


@contextmanager
def coding_model() -> Iterator[ProviderServer]:
    """A running fake; its base URL is `server.origin + "/v1"`."""
    with running(ProviderServer({"/v1/chat/completions": _chat}, models=(MODEL,))) as server:
        yield server


def _next_call(body: Json) -> tuple[str, Json] | None:
    """The name and the arguments; None if the work is done, or if this is no work."""
    tools = {tool["function"]["name"] for tool in body.get("tools") or ()}
    messages = body["messages"]
    called = {call["function"]["name"] for message in messages for call in message.get("tool_calls") or ()}
    found = _FILE.search(json.dumps(messages))
    if found is None or called & _WRITING.keys():
        return None
    for name, arguments in _BEFORE.items():
        if name in tools and name not in called:
            return name, arguments
    return next(((name, _WRITING[name](found[0])) for name in _WRITING if name in tools), None)


async def _chat(request: web.Request, received: Received) -> web.StreamResponse:
    body = received.body
    deltas: list[Json] = [{"role": "assistant", "content": "" if (call := _next_call(body)) else DONE}]
    if call:
        name, arguments = call
        function = {"name": name, "arguments": json.dumps(arguments)}
        deltas.append(
            {
                "tool_calls": [
                    {"index": 0, "id": f"call_{next(_call_ids)}", "type": "function", "function": function}
                ]
            }
        )
    finish = "tool_calls" if call else "stop"
    usage = {"prompt_tokens": 12, "completion_tokens": 6, "total_tokens": 18}
    if not body.get("stream"):
        message = deltas[0] | ({"tool_calls": deltas[1]["tool_calls"]} if call else {})
        choice = {"index": 0, "message": message, "finish_reason": finish}
        return web.json_response(_head("chat.completion") | {"choices": [choice], "usage": usage})
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    choices = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
    chunks: list[Json] = [{"choices": [choice]} for choice in choices]
    chunks += [{"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]}, {"choices": [], "usage": usage}]
    for chunk in chunks:
        await response.write(b"data: %s\n\n" % json.dumps(_head("chat.completion.chunk") | chunk).encode())
    await response.write(b"data: [DONE]\n\n")
    return response


def _head(kind: str) -> Json:
    return {"id": "chatcmpl-coder", "object": kind, "created": 1_770_000_000, "model": MODEL}
