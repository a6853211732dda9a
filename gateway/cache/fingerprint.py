"""Which requests are the same: everything that shapes an answer, and whose it is, as one hash."""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

import msgspec

from gateway.identity.caller import Caller
from gateway.lanes.base import Call
from gateway.openai import ChatRequest, EmbeddingRequest
from gateway.settings.base import Privacy

# These say who asks, not what is asked. How far it may travel is in the scope, and who may answer is a part of it.
_NOT_ASKED = frozenset(("user", "metadata", "store", "safety_identifier", "prompt_cache_key", "millrace"))
_DIGEST_BYTES = 20
_top_level = msgspec.json.Decoder(dict[str, msgspec.Raw])


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """`exact` is of the whole request. `context` is of all but the last question's text, which is `question`.

    Both are of the asker's scope too, so that no two tenants, and no two privacy classes, ever have one in common.
    """

    exact: bytes
    context: bytes | None = None
    question: str = ""


def is_deterministic(call: Call) -> bool:
    """Whether the request asks for no chance, so that one answer is as good as another."""
    request = call.request
    if isinstance(request, EmbeddingRequest):
        return True
    if call.kind not in ("chat", "completion"):
        return False
    return call.generation.temperature == 0 or call.generation.seed is not None


def fingerprint(
    call: Call,
    caller: Caller,
    privacy: Privacy,
    *,
    with_context: bool = False,
    stands_for: Sequence[str] = (),
) -> Fingerprint:
    """The hash of a call; `with_context` also that of what surrounds the last question, where it is plain text.

    `stands_for` are the models that the name in the request is an alias of just now.
    """
    fields = _top_level.decode(call.raw)
    scope = _scope(call, caller, privacy, stands_for)
    exact = _digest(scope, fields, None)
    question = _last_question(call) if with_context else ""
    if not question:
        return Fingerprint(exact)
    return Fingerprint(exact, _digest(scope, fields, _without_question(fields["messages"])), question)


def _scope(call: Call, caller: Caller, privacy: Privacy, stands_for: Sequence[str]) -> bytes:
    """Whose the answer is, and every rule that decided who may have given it."""
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
    """All are allowed, or those; names have no line breaks."""
    return "*" if allowed is None else "\n".join(("only", *sorted(allowed)))


def _digest(scope: bytes, fields: dict[str, msgspec.Raw], messages: bytes | None) -> bytes:
    hashed = blake2b(scope, digest_size=_DIGEST_BYTES)
    for name in sorted(fields.keys() - _NOT_ASKED):
        value = bytes(fields[name]) if messages is None or name != "messages" else messages
        hashed.update(b"\0%d:%s%d:" % (len(name), name.encode("utf-8", "surrogatepass"), len(value)))
        hashed.update(value)
    return hashed.digest()


def _last_question(call: Call) -> str:
    """The text of the user's last message, when that is how the conversation ends."""
    if not isinstance(call.request, ChatRequest):
        return ""
    last = call.request.messages[-1]
    return last.content if last.role == "user" and isinstance(last.content, str) else ""


def _without_question(messages: msgspec.Raw) -> bytes:
    parts = msgspec.json.decode(messages, type=list[msgspec.Raw])
    return b"\0".join(bytes(part) for part in parts[:-1])
