"""The requests to an embedding model and its answers: one vector for each text."""

from dataclasses import dataclass

from msgspec import Struct

from cluster.errors import ContextLengthExceeded, FrameInvalid, RequestInvalid

# The limits of the OpenAI API.
INPUTS_MAX = 2048
TOKENS_MAX = 300_000
# The limit of one text: for a longer text a decoder would need gigabytes of KV cache.
CONTEXT_TOKENS_MAX = 8192
# Clocks of two machines run at slightly different speeds.
_CLOCKS_APART = 0.01


class EmbedRequest(Struct, frozen=True, kw_only=True):
    """Either texts, or lists of token ids, which are used unchanged.

    `dimensions` asks for only the first values of each vector, which only some models are trained for.
    """

    id: str
    texts: list[str] = []
    token_ids: list[list[int]] = []
    dimensions: int | None = None


@dataclass(frozen=True, slots=True)
class Embeddings:
    """Vectors in the order of the request: little-endian fp32 [texts, dimensions], one behind the other.

    `token_counts` has one count for each text; `compute_ns` is the computing time in nanoseconds.
    """

    vectors: bytes
    dimensions: int
    token_counts: list[int]
    compute_ns: int


def check_inputs(request: EmbedRequest) -> None:
    """Raise RequestInvalid for inputs that are wrong whatever the tokenizer says."""
    if bool(request.texts) == bool(request.token_ids):
        raise RequestInvalid("input: must be texts or lists of tokens, and must not be empty", "input")
    inputs: list[str] | list[list[int]] = request.texts or request.token_ids
    if len(inputs) > INPUTS_MAX:
        raise RequestInvalid(f"input: {len(inputs)} inputs are more than {INPUTS_MAX}", "input")
    empty = next((at for at, one in enumerate(inputs) if not one), None)
    if empty is not None:
        raise RequestInvalid(f"input[{empty}]: must not be empty", "input")


def check_answer(request: EmbedRequest, answer: Embeddings, elapsed_ns: int) -> None:
    """Raise FrameInvalid if this cannot be the answer to a request that was sent `elapsed_ns` ago."""
    counts, inputs = answer.token_counts, len(request.texts or request.token_ids)
    if len(counts) != inputs:
        raise FrameInvalid(f"{inputs} inputs were embedded as {len(counts)}")
    if not all(0 < count <= CONTEXT_TOKENS_MAX for count in counts):
        raise FrameInvalid(f"an answer claims texts of {min(counts)} to {max(counts)} tokens")
    if request.token_ids and counts != [len(ids) for ids in request.token_ids]:
        raise FrameInvalid("an answer claims wrong lengths for lists of tokens")
    if not 0 < answer.dimensions == (request.dimensions or answer.dimensions):
        raise FrameInvalid(f"vectors have {answer.dimensions} dimensions, {request.dimensions} were asked for")
    if len(answer.vectors) != 4 * answer.dimensions * inputs:
        raise FrameInvalid(f"{len(answer.vectors)} bytes are not {inputs} vectors of {answer.dimensions}")
    if not 0 <= answer.compute_ns <= elapsed_ns * (1 + _CLOCKS_APART):
        raise FrameInvalid(f"an answer claims {answer.compute_ns} ns of computing in {elapsed_ns} ns")


def check_tokens(token_ids: list[list[int]], context_tokens: int, vocabulary: int) -> None:
    """Raise ContextLengthExceeded or RequestInvalid if the model cannot read the tokens."""
    total = 0
    for at, ids in enumerate(token_ids):
        total += len(ids)
        if not ids:
            raise RequestInvalid(f"input[{at}]: has no tokens", "input")
        if len(ids) > context_tokens:
            raise ContextLengthExceeded(
                f"This model's maximum context length is {context_tokens} tokens, input[{at}] has {len(ids)}. "
                "Shorten or split it.",
                "input",
            )
        if not 0 <= min(ids) <= max(ids) < vocabulary:
            raise RequestInvalid(f"input[{at}]: a token is outside the vocabulary of {vocabulary} tokens", "input")
    if total > TOKENS_MAX:
        raise RequestInvalid(f"input: {total} tokens are more than {TOKENS_MAX}; send fewer at once", "input")
