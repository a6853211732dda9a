"""Which cloud models give log-probabilities: the others are not offered to who asks for them.

Asked for what its adapter does not know, litellm refuses the request. These lists are held against the installed
one by a test.
"""

import re

# Providers that give none, or none of alternatives, or whose adapter in litellm knows of none.
_WITHOUT = frozenset(
    (
        "a2a",
        "ai21",
        "ai21_chat",
        "amazon_nova",
        "anthropic",
        "anthropic_text",
        "baseten",
        "bedrock",
        "bytez",
        "cerebras",
        "clarifai",
        "codestral",
        "cohere",
        "cohere_chat",
        "databricks",
        "deepinfra",
        "fal_ai",
        "featherless_ai",
        "gemini",
        "gigachat",
        "gradient_ai",
        "hyperbolic",
        "inception",
        "infinity",
        "langflow",
        "langgraph",
        "maritalk",
        "mistral",
        "morph",
        "nadir",
        "nlp_cloud",
        "nvidia_nim",
        "oci",
        "ollama",
        "ollama_chat",
        "perplexity",
        "petals",
        "predibase",
        "replicate",
        "sagemaker",
        "sail",
        "sambanova",
        "snowflake",
        "text-completion-codestral",
        "text-completion-inception",
        "triton",
        "v0",
        "voyage",
        "watsonx_text",
        "zai",
    )
)
# Models that reason do not say them.
_REASONING = re.compile(r"(?:openai|azure|azure_ai)/(?:.*/)?(?:o[1-9]|o_series|gpt-?5)")
_ANSWERING = re.compile(r"gpt-5-chat|gpt-5\.[2-9]|^openai/gpt-5\.1")
_REASONING_ANYWAY = re.compile(r"codex|-pro")


def gives_logprobs(litellm_model: str) -> bool:
    """Whether a model, named as litellm does, can be asked for `logprobs` and `top_logprobs`."""
    provider = litellm_model.partition("/")[0]
    if provider in _WITHOUT or "claude" in litellm_model:
        return False
    if not _REASONING.match(litellm_model):
        return True
    return bool(_ANSWERING.search(litellm_model)) and not _REASONING_ANYWAY.search(litellm_model)
