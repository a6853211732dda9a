"""The same request as code: for curl, and for OpenAI's clients in Python and JavaScript."""

import json
import shlex
from typing import Any

from fastapi import APIRouter, Request, Response

from gateway.console.access import Viewer
from gateway.console.browser import root_of
from gateway.console.forms import read_form
from gateway.console.pages.playground.problems import as_json, wrong_fields
from gateway.console.pages.playground.question import FORM_BYTES_MAX, PATH, Draft
from gateway.console.renderer import partial

router = APIRouter(prefix=PATH)


@router.post("/code")
async def show(request: Request, visitor: Viewer) -> Response:
    """Show the code. Raises RoleForbids, BodyTooLarge."""
    form = await read_form(visitor, Draft, FORM_BYTES_MAX)
    if form.value is None:
        return Response(as_json(wrong_fields(form.errors)), 400, media_type="application/json")
    base_url, body = f"{root_of(request)}/v1", form.value.as_request()
    examples = {"curl": as_curl(base_url, body), "python": as_python(base_url, body), "js": as_js(base_url, body)}
    return partial("playground/code.html", visitor, examples=examples, base_url=base_url)


def as_curl(base_url: str, body: dict[str, Any]) -> str:
    """Return a command for a POSIX shell with the key in OPENAI_API_KEY."""
    lines = (
        f"curl -N {shlex.quote(f'{base_url}/chat/completions')}",
        '-H "Authorization: Bearer $OPENAI_API_KEY"',
        "-H 'Content-Type: application/json'",
        f"-d {shlex.quote(_json(body))}",
    )
    return " \\\n  ".join(lines)


def as_python(base_url: str, body: dict[str, Any]) -> str:
    """Return Python code. Fields unknown to OpenAI go into `extra_body`."""
    fields = dict(body)
    extras = fields.pop("millrace", None)
    if extras:
        fields["extra_body"] = {"millrace": extras}
    messages = "".join(f"        {message!r},\n" for message in fields.pop("messages"))
    rest = "".join(f"    {name}={value!r},\n" for name, value in fields.items() if name != "model")
    return (
        "from openai import OpenAI\n\n"
        f"client = OpenAI(base_url={base_url!r})  # reads the key from OPENAI_API_KEY\n"
        "answer = client.chat.completions.create(\n"
        f"    model={fields['model']!r},\n"
        f"    messages=[\n{messages}    ],\n{rest})\n"
        "for chunk in answer:\n"
        "    if chunk.choices:\n"
        '        print(chunk.choices[0].delta.content or "", end="", flush=True)'
    )


def as_js(base_url: str, body: dict[str, Any]) -> str:
    """Return JavaScript code; JSON is valid JavaScript."""
    return (
        'import OpenAI from "openai";\n\n'
        f"const client = new OpenAI({{ baseURL: {json.dumps(base_url)} }}); // reads the key from OPENAI_API_KEY\n"
        f"const answer = await client.chat.completions.create({_json(body)});\n"
        'for await (const chunk of answer) process.stdout.write(chunk.choices[0]?.delta?.content ?? "");'
    )


def _json(body: dict[str, Any]) -> str:
    return json.dumps(body, indent=2, ensure_ascii=False)
