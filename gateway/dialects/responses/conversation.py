"""What a question points at in earlier responses, looked up before it is asked."""

from dataclasses import replace
from typing import Any

import orjson

from gateway.dialects.base import Question
from gateway.dialects.responses.answer import response_of_item
from gateway.dialects.responses.items import REFERENCE, convert, type_of
from gateway.dialects.responses.requests import ResponsesQuestion, with_items
from gateway.dialects.responses.shapes import Item, ReferenceItem
from gateway.errors import NotFound
from gateway.identity.caller import Caller
from gateway.responses.store import ResponseStore, StoredResponse, owner_of

REFERENCES_MAX = 1000


async def resolve(store: ResponseStore, caller: Caller, question: Question) -> Question:
    """The question with the conversation before it. Waits only where it points at something stored.

    Raises NotFound for what is not the caller's, or is no more; RequestInvalid for too long a conversation.
    """
    assert isinstance(question, ResponsesQuestion)
    asked = question.asked
    is_kept = asked.store is not False and store.keeps(caller)
    question = replace(question, owner=owner_of(caller), keep=store.add if is_kept else None)
    own_items = list(question.own_items)
    has_references = any(type_of(item) == REFERENCE for item in own_items)
    if not asked.previous_response_id and not has_references:
        return question
    earlier = await _earlier(store, question.owner, asked.previous_response_id)
    if has_references:
        own_items = await _looked_up(store, question.owner, own_items)
    return with_items(question, earlier, own_items)


def items_of(response: StoredResponse) -> list[Item]:
    """What was asked and what was said, in order."""
    asked: list[Item] = orjson.loads(response.input)
    answer: dict[str, Any] = orjson.loads(response.answer)
    return [*asked, *answer["output"]]


async def _earlier(store: ResponseStore, owner: str, previous_id: str | None) -> list[Item]:
    if previous_id is None:
        return []
    try:
        chain = await store.chain(owner, previous_id)
    except NotFound:
        text = f"previous_response_id: {previous_id[:80]!r} is not stored, or a response before it is not any more"
        raise NotFound(text, param="previous_response_id", code="previous_response_not_found") from None
    return [item for response in chain for item in items_of(response)]


async def _looked_up(store: ResponseStore, owner: str, items: list[Item]) -> list[Item]:
    """The items with those that references stand for in their places; each response is fetched once."""
    known: dict[str, Item] = {}
    found: list[Item] = []
    for at, item in enumerate(items):
        if type_of(item) != REFERENCE:
            found.append(item)
            continue
        wanted = convert(item, ReferenceItem, f"input[{at}]").id
        if wanted not in known and len(known) <= REFERENCES_MAX:
            known |= await _items_beside(store, owner, wanted)
        if wanted not in known:
            field = f"input[{at}].id"
            raise NotFound(f"{field}: there is no stored item {wanted[:80]!r}; send the item itself", param=field)
        found.append(known[wanted])
    return found


async def _items_beside(store: ResponseStore, owner: str, wanted: str) -> dict[str, Item]:
    """All items of the response that the wanted one belongs to, by id; none where there is no such response."""
    response_id = response_of_item(wanted)
    if response_id is None:
        return {}
    try:
        response = await store.find(owner, response_id)
    except NotFound:
        return {}
    return {item["id"]: item for item in items_of(response) if "id" in item}
