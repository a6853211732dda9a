"""The cloud models that return log-probabilities; requests for them are not routed to other models.

litellm refuses requests for features that its adapter does not know. A test compares these lists with the
installed version.
"""

import re

# Providers without log-probabilities, without alternatives, or without support in litellm's adapter.
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
# Reasoning models do not return them.
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
