"""Writes the cluster's log-probabilities in OpenAI's formats for chats and completions."""

from typing import Any

from cluster.generation import Alternative, SampledToken


def chat_logprobs(tokens: list[SampledToken]) -> dict[str, Any]:
    return {"content": [_chat_logprob(token) for token in tokens], "refusal": None}


def text_logprobs(tokens: list[SampledToken], offset: int) -> tuple[dict[str, Any], int]:
    """Return a completion's log-probabilities for tokens that start at this character, and the next offset."""
    offsets = []
    for token in tokens:
        offsets.append(offset)
        offset += len(_text(token))
    logprobs = {
        "tokens": [_name(token) for token in tokens],
        "token_logprobs": [token.logprob for token in tokens],
        "top_logprobs": [{_name(other): other.logprob for other in token.top} for token in tokens],
        "text_offset": offsets,
    }
    return logprobs, offset


def _chat_logprob(token: SampledToken) -> dict[str, Any]:
    return _entry(token) | {"top_logprobs": [_entry(other) for other in token.top]}


def _entry(token: SampledToken | Alternative) -> dict[str, Any]:
    return {"token": _text(token), "logprob": token.logprob, "bytes": list(token.raw)}


def _text(token: SampledToken | Alternative) -> str:
    return token.raw.decode("utf-8", "replace")


def _name(token: SampledToken | Alternative) -> str:
    """Return a token's text. Completions have no bytes field, so partial characters are escaped as OpenAI does."""
    try:
        return token.raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token.raw)
