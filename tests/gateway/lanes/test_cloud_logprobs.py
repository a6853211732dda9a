"""The lists of who gives log-probabilities are those of the installed litellm."""

import json
import os
import subprocess
import sys

from gateway.lanes.cloud.logprobs import gives_logprobs

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
# A process of its own: litellm is not imported where the gateway is.
ASK = """
import json, sys
import litellm
def known(name):
    provider, _, model = name.partition("/")
    found = litellm.get_supported_openai_params(model, custom_llm_provider=provider)
    return None if found is None else {"logprobs", "top_logprobs"} <= set(found)
providers = [str(getattr(provider, "value", provider)) for provider in litellm.provider_list]
names = json.loads(sys.argv[1]) + [provider + "/some-model" for provider in providers]
print("\\n" + json.dumps({name: known(name) for name in names}))
"""


def test_they_agree_with_litellm() -> None:
    environment = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    command = [sys.executable, "-c", ASK, json.dumps(MODELS)]
    said = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=300)
    found = json.loads(said.stdout.splitlines()[-1])
    # Providers that litellm says nothing of do not chat, or are asked for anything.
    expected = {name: can for name, can in found.items() if can is not None}
    assert expected.keys() >= set(MODELS)
    assert {name: gives_logprobs(name) for name in expected} == expected
