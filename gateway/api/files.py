"""/v1/files: uploads for batches, and the results of batches."""

import asyncio
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from starlette.responses import FileResponse

from gateway.api.authority import KeyCaller
from gateway.api.openai_pages import page
from gateway.app_state import Batches
from gateway.batches.forms import UploadForm, read_upload
from gateway.dialects.stored_responses.store import owner_of
from gateway.parameters import Named, OptionalText
from runtime.errors import RequestInvalid

router = APIRouter(prefix="/v1/files")

Json = dict[str, Any]

LASTS_S_MIN, LASTS_S_MAX = 3600, 2_592_000
_FILES_PAGE_MAX = 10_000


@router.post("")
async def upload(request: Request, caller: KeyCaller, batches: Batches) -> Json:
    """Upload a JSONL file for a batch, as a form."""
    files, owner = batches.files, owner_of(caller)

    form, upload = await read_upload(request.scope, request.receive, lambda: asyncio.to_thread(files.begin, owner))
    try:
        lasts_s = _checked(form)
        keeping = asyncio.to_thread(files.keep, upload, owner, form.filename or "file", lasts_s)
        # If the client disconnects now, the file is stored anyway.
        stored = await asyncio.shield(keeping)
    except Exception:
        await asyncio.to_thread(upload.abandon)
        raise
    return stored.as_api()


@router.get("")
async def list_files(
    caller: KeyCaller,
    batches: Batches,
    purpose: OptionalText = None,
    limit: Annotated[int, Query(ge=1, le=_FILES_PAGE_MAX)] = _FILES_PAGE_MAX,
    order: Literal["asc", "desc"] = "desc",
    after: OptionalText = None,
) -> Json:
    """List the caller's files."""
    files, owner = batches.files, owner_of(caller)
    return page(await asyncio.to_thread(files.listed, owner, limit + 1, after, order, purpose), limit)


@router.get("/{file_id}")
async def get_file(caller: KeyCaller, batches: Batches, file_id: Named) -> Json:
    """Show a file's name, size and expiry."""
    files, owner = batches.files, owner_of(caller)
    return (await asyncio.to_thread(files.find, owner, file_id)).as_api()


@router.get("/{file_id}/content")
async def get_content(caller: KeyCaller, batches: Batches, file_id: Named) -> FileResponse:
    """Download a file's content, byte for byte."""
    files, owner = batches.files, owner_of(caller)
    file = await asyncio.to_thread(files.find, owner, file_id)
    path = await asyncio.to_thread(files.content, file)
    return FileResponse(path, media_type="application/octet-stream", filename=file.filename)


@router.delete("/{file_id}")
async def delete_file(caller: KeyCaller, batches: Batches, file_id: Named) -> Json:
    """Delete a file."""
    files, owner = batches.files, owner_of(caller)
    await asyncio.to_thread(files.remove, owner, file_id)
    return {"id": file_id, "object": "file", "deleted": True}


def _checked(form: UploadForm) -> int | None:
    """Return how long to keep the file, in seconds. Raises RequestInvalid."""
    purpose = form.fields.get("purpose")
    if purpose != "batch":
        code = "invalid_value" if purpose else "missing_required_parameter"
        text = "purpose: must be 'batch'; other files are not used here"
        raise RequestInvalid(text, param="purpose", code=code)
    anchor = form.fields.get("expires_after[anchor]")
    seconds = form.fields.get("expires_after[seconds]")
    if anchor is None and seconds is None:
        return None
    if anchor != "created_at":
        text = "expires_after.anchor: must be 'created_at'"
        raise RequestInvalid(text, param="expires_after.anchor", code="invalid_value")
    if not seconds or not seconds.isascii() or not seconds.isdigit() or len(seconds) > 10:
        text = "expires_after.seconds: must be a whole number"
        raise RequestInvalid(text, param="expires_after.seconds", code="invalid_value")
    return check_lasts_s(int(seconds), "expires_after.seconds")


def check_lasts_s(lasts_s: int, field: str) -> int:
    """Raises RequestInvalid."""
    if not LASTS_S_MIN <= lasts_s <= LASTS_S_MAX:
        text = f"{field}: must be {LASTS_S_MIN} to {LASTS_S_MAX} seconds"
        raise RequestInvalid(text, param=field, code="invalid_value")
    return lasts_s
