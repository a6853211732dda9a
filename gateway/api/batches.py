"""/v1/batches: files of requests, answered within a day on idle capacity."""

import asyncio
import time
from typing import Annotated, Any, Literal

import msgspec
import orjson
from fastapi import APIRouter, Query, Request
from msgspec import Meta, Struct

from gateway.api.authority import KeyCaller
from gateway.api.edge import read_body
from gateway.api.files import LASTS_S_MAX, LASTS_S_MIN
from gateway.api.openai_pages import PAGE_MAX, page
from gateway.app_state import Batches
from gateway.batches.batch import WINDOW_S, Batch, new_batch_id
from gateway.dialects.openai.reader import decode
from gateway.dialects.stored_responses.store import owner_of
from gateway.identity.caller import Caller
from gateway.parameters import Named, OptionalText
from runtime.errors import NotFound, RequestInvalid

router = APIRouter(prefix="/v1/batches")

Json = dict[str, Any]

_BODY_BYTES_MAX = 64 * 2**10
_PAIRS_MAX = 16


class _ExpiresAfter(Struct, frozen=True):
    anchor: Literal["created_at"]
    seconds: Annotated[int, Meta(ge=LASTS_S_MIN, le=LASTS_S_MAX)]


class _Order(Struct, frozen=True, forbid_unknown_fields=True):
    input_file_id: Annotated[str, Meta(min_length=1, max_length=200, pattern=r"^[^\x00]*\Z")]
    endpoint: Literal["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses"]
    completion_window: Literal["24h"]
    metadata: (
        Annotated[
            dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]],
            Meta(max_length=_PAIRS_MAX),
        ]
        | None
    ) = None
    output_expires_after: _ExpiresAfter | None = None


_decoder = msgspec.json.Decoder(_Order)


@router.post("")
async def create_batch(request: Request, caller: KeyCaller, batches: Batches) -> Json:
    """Create a batch: every line of a file is answered within 24 hours."""
    order = decode(_decoder, await read_body(request.scope, request.receive, _BODY_BYTES_MAX))
    batch = await asyncio.to_thread(_create, batches, caller, order)
    batches.wake()
    return batch.as_api()


@router.get("")
async def list_batches(
    caller: KeyCaller,
    batches: Batches,
    limit: Annotated[int, Query(ge=1, le=PAGE_MAX)] = 20,
    after: OptionalText = None,
) -> Json:
    """List the caller's batches, newest first."""
    return page(await asyncio.to_thread(batches.store.newest, owner_of(caller), limit + 1, after), limit)


@router.get("/{batch_id}")
async def get_batch(caller: KeyCaller, batches: Batches, batch_id: Named) -> Json:
    """Show a batch with its progress and its output and error files."""
    return (await asyncio.to_thread(batches.store.find, owner_of(caller), batch_id)).as_api()


@router.post("/{batch_id}/cancel")
async def cancel_batch(caller: KeyCaller, batches: Batches, batch_id: Named) -> Json:
    """Cancel a batch; its answers stay."""
    batch = await asyncio.to_thread(batches.store.cancel, owner_of(caller), batch_id)
    batches.wake()
    return batch.as_api()


def _create(batches: Batches, caller: Caller, order: _Order) -> Batch:
    """Raises NotFound, RequestInvalid, Conflict and RateLimited."""
    owner, now_ns = owner_of(caller), time.time_ns()
    try:
        file = batches.files.find(owner, order.input_file_id)
    except NotFound as error:
        raise NotFound(f"input_file_id: {error.message}", param="input_file_id") from None
    if file.purpose != "batch":
        text = f"input_file_id: the file's purpose must be 'batch', not '{file.purpose}'"
        raise RequestInvalid(text, param="input_file_id", code="invalid_value")
    if file.folder_id == batches.files.folder_id:
        batches.files.content(file)
    # Otherwise the gateway with the file finds the batch in the database.
    batch = Batch(
        id=new_batch_id(),
        owner=owner,
        folder_id=file.folder_id,
        key_id=caller.key_id,
        endpoint=order.endpoint,
        input_file_id=file.id,
        status="validating",
        created_ns=now_ns,
        expires_ns=now_ns + WINDOW_S * 10**9,
        annotations=orjson.dumps(order.metadata).decode() if order.metadata else None,
        output_lifetime_s=order.output_expires_after.seconds if order.output_expires_after else None,
    )
    batches.store.add(batch)
    return batch
