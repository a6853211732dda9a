"""The lists of who gives log-probabilities are those of the installed litellm."""

import json
import os
import subprocess
from pathlib import Path

from gateway.lanes.cloud.logprobs import gives_logprobs
from tests.gateway.lanes.cloud.running import ForkedProgram

PROGRAM = "tests.gateway.lanes.litellm_logprobs"
PATIENCE_S = 300.0

MODELS = (
    "openai/gpt-4o-mini",
    "openai/gpt-4.1",
    "openai/o1",
    "openai/o3-mini",
    "openai/o4-mini",
    "openai/gpt-5",
    "openai/gpt-5-mini",
    "openai/gpt-5-chat-latest",
    "openai/gpt-5.1",
    "openai/gpt-5.1-codex",
    "openai/gpt-5.2",
    "openai/gpt-5.2-pro",
    "azure/o3-mini",
    "azure/gpt-4o",
    "azure/gpt-5",
    "azure/gpt-5.1",
    "azure/gpt-5.2",
    "azure_ai/o3",
    "anthropic/claude-sonnet-4-5",
    "vertex_ai/claude-3-5-sonnet",
    "vertex_ai/gemini-2.5-flash",
    "gemini/gemini-2.5-flash",
    "groq/openai/gpt-oss-120b",
    "deepseek/deepseek-chat",
)


def test_they_agree_with_litellm() -> None:
    # Litellm is not imported where the gateway is.
    with ForkedProgram(PROGRAM, dict(os.environ), Path.cwd(), subprocess.DEVNULL) as child:
        child.stdin.write(json.dumps(MODELS).encode())
        child.stdin.close()
        found = json.loads(child.stdout.read().splitlines()[-1])
        assert child.wait(PATIENCE_S) == 0
    # Providers that litellm says nothing of do not chat, or are asked for anything.
    expected = {name: can for name, can in found.items() if can is not None}
    assert expected.keys() >= set(MODELS)
    assert {name: gives_logprobs(name) for name in expected} == expected
