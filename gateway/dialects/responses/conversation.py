"""Looks up the earlier responses that a question refers to."""

from collections.abc import Iterable
from typing import Any

import orjson
from msgspec import structs

from gateway.dialects.base import Question
from gateway.dialects.responses.answer import response_of_item
from gateway.dialects.responses.items import REFERENCE, convert, type_of
from gateway.dialects.responses.requests import ResponsesQuestion, with_items
from gateway.dialects.responses.shapes import Item, ReferenceItem
from gateway.dialects.stored_responses.store import ResponseStore, StoredResponse, owner_of
from gateway.identity.caller import Caller
from gateway.settings.base import PRIVACY_RANK, Privacy
from runtime.errors import NotFound

REFERENCES_MAX = 1000


async def resolve(store: ResponseStore, caller: Caller, question: Question) -> Question:
    """Return the question with the conversation before it. Waits only if it refers to a stored response.

    Raises NotFound for a response that is deleted or another owner's, RequestInvalid for a conversation that is
    too long, and StorageUnavailable if the answer is to be stored and cannot be.
    """
    assert isinstance(question, ResponsesQuestion)
    owner, label = owner_of(caller), question.label
    if question.asked.previous_response_id or any(type_of(item) == REFERENCE for item in question.own_items):
        memory = _Memory(store, owner)
        earlier = await memory.earlier(question.asked.previous_response_id)
        own_items = await memory.looked_up(question.own_items)
        label = most_private(label, memory.label)
        question = with_items(question, earlier, own_items, label)
    privacy = most_private(label, caller.privacy)
    is_kept = question.asked.store is not False and store.keeps(privacy)
    if is_kept:
        await store.check()
    return structs.replace(question, owner=owner, privacy=privacy, keep=store.add if is_kept else None)


def most_private(*labels: Privacy) -> Privacy:
    return max(labels, key=PRIVACY_RANK.__getitem__)


def items_of(response: StoredResponse) -> list[Item]:
    """Return the items of the input and of the answer, in order."""
    items: list[Item] = orjson.loads(response.input)
    answer: dict[str, Any] = orjson.loads(response.answer)
    return [*items, *answer["output"]]


class _Memory:
    """Reads one owner's stored responses. `label` is the most private label read so far."""

    def __init__(self, store: ResponseStore, owner: str) -> None:
        self._store = store
        self._owner = owner
        self._known: dict[str, Item] = {}
        self.label: Privacy = "public"

    async def earlier(self, previous_id: str | None) -> list[Item]:
        """Return the items of a response and of those before it."""
        if previous_id is None:
            return []
        try:
            chain = await self._store.chain(self._owner, previous_id)
        except NotFound:
            raise NotFound(
                f"previous_response_id: {previous_id[:80]!r} or an earlier response is no longer stored",
                param="previous_response_id",
                code="previous_response_not_found",
            ) from None
        return [item for response in chain for item in self._read(response)]

    async def looked_up(self, items: Iterable[Item]) -> list[Item]:
        """Return the items with references replaced; each response is fetched once."""
        found: list[Item] = []
        for at, item in enumerate(items):
            if type_of(item) != REFERENCE:
                found.append(item)
                continue
            item_id = convert(item, ReferenceItem, f"input[{at}]").id
            if item_id not in self._known and len(self._known) <= REFERENCES_MAX:
                self._known |= await self._items_beside(item_id)
            if item_id not in self._known:
                field = f"input[{at}].id"
                raise NotFound(
                    f"{field}: stored item {item_id[:80]!r} not found; send the item itself", param=field
                )
            found.append(self._known[item_id])
        return found

    async def _items_beside(self, item_id: str) -> dict[str, Item]:
        """Return all items of the response that this item belongs to, by id; empty if it does not exist."""
        response_id = response_of_item(item_id)
        if response_id is None:
            return {}
        try:
            response = await self._store.find(self._owner, response_id)
        except NotFound:
            return {}
        return {item["id"]: item for item in self._read(response) if "id" in item}

    def _read(self, response: StoredResponse) -> list[Item]:
        self.label = most_private(self.label, response.privacy)
        return items_of(response)
