"""A program that says of each model that stdin names whether litellm asks it for log-probabilities.

To the names it adds a model of every provider of the installed litellm.
"""

import json
import sys

import litellm


def main() -> None:
    providers = [str(getattr(provider, "value", provider)) for provider in litellm.provider_list]
    names = json.load(sys.stdin) + [f"{provider}/some-model" for provider in providers]
    sys.stdout.write("\n" + json.dumps({name: _known(name) for name in names}))


def _known(name: str) -> bool | None:
    """Return None if litellm says nothing of this model's parameters."""
    provider, _, model = name.partition("/")
    found = litellm.get_supported_openai_params(model, custom_llm_provider=provider)
    return None if found is None else {"logprobs", "top_logprobs"} <= set(found)


if __name__ == "__main__":
    main()
