"""The identity of a request: a hash of everything that shapes its answer, and of its owner."""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

import msgspec

from gateway.dialects.openai import ChatRequest, EmbeddingRequest
from gateway.identity.caller import Caller
from gateway.lanes.base import Call
from gateway.settings.base import Privacy

# Fields about the caller, not the request. The `millrace` fields that decide who may answer are in the scope.
_NOT_ASKED = frozenset(("user", "metadata", "store", "safety_identifier", "prompt_cache_key", "millrace"))
_DIGEST_BYTES = 20
_top_level = msgspec.json.Decoder(dict[str, msgspec.Raw])


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """`exact` hashes the whole request. `context` hashes all but the last question's text, which is `question`.

    Both include the caller's scope, so that no two tenants and no two privacy classes ever share one.
    """

    exact: bytes
    context: bytes | None = None
    question: str = ""


def is_deterministic(call: Call) -> bool:
    """Return whether the request excludes randomness, so that one answer is as good as another."""
    request = call.request
    if isinstance(request, EmbeddingRequest):
        return True
    if call.kind not in ("chat", "completion"):
        return False
    asked = call.generation
    return asked.temperature == 0 or asked.seed is not None


def fingerprint(
    call: Call,
    caller: Caller,
    privacy: Privacy,
    *,
    with_context: bool = False,
    stands_for: Sequence[str] = (),
) -> Fingerprint:
    """Return the hash of a call; `with_context` adds the hash of what surrounds the last question, if that is
    plain text.

    `stands_for` are the models that the request's model name currently routes to as an alias.
    """
    fields = _top_level.decode(call.raw)
    scope = _scope(call, caller, privacy, stands_for)
    exact = _digest(scope, fields, None)
    question = _last_question(call) if with_context else ""
    if not question:
        return Fingerprint(exact)
    return Fingerprint(exact, _digest(scope, fields, _without_question(fields["messages"])), question)


def _scope(call: Call, caller: Caller, privacy: Privacy, stands_for: Sequence[str]) -> bytes:
    """Return whose the answer is, and every rule that decided who may give it."""
    extras = call.request.millrace
    parts = (
        caller.organization_id,
        caller.user_id,
        privacy,
        call.kind,
        (extras and extras.lane) or "",
        "continues" if extras and extras.continue_on_failure else "",
        _names(caller.lanes),
        _names(caller.regions),
        _names(caller.models),
        *stands_for,
    )
    return b"".join(b"%d:%s" % (len(part), part.encode("utf-8", "surrogatepass")) for part in parts)


def _names(allowed: frozenset[str] | None) -> str:
    """Return the allowed names, or `*` for all; names have no line breaks."""
    return "*" if allowed is None else "\n".join(("only", *sorted(allowed)))


def _digest(scope: bytes, fields: dict[str, msgspec.Raw], messages: bytes | None) -> bytes:
    hashed = blake2b(scope, digest_size=_DIGEST_BYTES)
    for name in sorted(fields.keys() - _NOT_ASKED):
        value = bytes(fields[name]) if messages is None or name != "messages" else messages
        hashed.update(b"\0%d:%s%d:" % (len(name), name.encode("utf-8", "surrogatepass"), len(value)))
        hashed.update(value)
    return hashed.digest()


def _last_question(call: Call) -> str:
    """Return the text of the user's last message, if the conversation ends with one."""
    if not isinstance(call.request, ChatRequest):
        return ""
    last = call.request.messages[-1]
    return last.content if last.role == "user" and isinstance(last.content, str) else ""


def _without_question(messages: msgspec.Raw) -> bytes:
    parts = msgspec.json.decode(messages, type=list[msgspec.Raw])
    return b"\0".join(bytes(part) for part in parts[:-1])
