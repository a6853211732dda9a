"""Log-probabilities of our own pipeline in OpenAI's words, as chats and as completions have them."""

from typing import Any

from cluster.generation import Alternative, SampledToken


def chat_logprobs(tokens: list[SampledToken]) -> dict[str, Any]:
    return {"content": [_chat_logprob(token) for token in tokens], "refusal": None}


def text_logprobs(tokens: list[SampledToken], offset: int) -> tuple[dict[str, Any], int]:
    """A completion's log-probabilities for tokens that start at this character, and the next tokens' offset."""
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
    """A completion's tokens have no bytes beside them: a part of a character is written out as OpenAI does."""
    try:
        return token.raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token.raw)
