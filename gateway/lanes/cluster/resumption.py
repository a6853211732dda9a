"""Resumption between gateways: the part of a broken answer that a gateway has, and whose rest it requests."""

from cluster.errors import RequestInvalid
from cluster.generation import Resume
from gateway.dialects.openai import CompletionRequest, GenerationRequest, Had
from gateway.lanes.base import Call


def had_of(call: Call, weights: str, context_tokens: int | None) -> tuple[Had, ...]:
    """Return the part of each choice that the caller has. Raises RequestInvalid, which names the field."""
    extras, request = call.request.millrace, call.generation
    if extras is None or extras.resume is None:
        return ()
    if not request.is_stream:
        raise _refusal("resume", "only allowed with stream: true")
    if not has_one_prompt(request):
        raise _refusal("resume", "only allowed with a single prompt")
    if len(extras.resume) != (request.n or 1):
        raise _refusal("resume", f"has {len(extras.resume)} entries; one for each of {request.n or 1} choices")
    if extras.weights not in (None, weights):
        raise _refusal("weights", "the model here has other weights or another precision; start again")
    longest = max(len(had.token_ids) for had in extras.resume)
    if context_tokens is not None and longest > context_tokens:
        raise _refusal("resume", f"has {longest} tokens of a choice; the model's context is {context_tokens}")
    return tuple(extras.resume)


def tells_tokens(call: Call, weights: str) -> bool:
    """Return whether the caller requests its stream's tokens, with which it can resume the stream."""
    extras, request = call.request.millrace, call.generation
    if extras is None or not extras.resumable or not request.is_stream:
        return False
    return has_one_prompt(request) and extras.weights in (None, weights)


def has_one_prompt(request: GenerationRequest) -> bool:
    if not isinstance(request, CompletionRequest) or isinstance(request.prompt, str):
        return True
    return len(request.prompt) == 1 or all(isinstance(part, int) for part in request.prompt)


def resume_of(had: tuple[Had, ...]) -> tuple[Resume, ...]:
    """Return entries for the coordinator.

    It sends the whole text again, because its parser must start at the beginning.
    """
    return tuple(Resume(token_ids=one.token_ids, characters=0) for one in had)


def _refusal(field: str, problem: str) -> RequestInvalid:
    return RequestInvalid(f"millrace.{field}: {problem}", f"millrace.{field}")
