"""Requests: the log of what was asked, each with where it went and why."""

from fastapi import APIRouter

from gateway.console.pages.requests import listing, one, sheet

router = APIRouter()
# The one with an id in its path last: it would take the others' paths for ids.
for part in (listing, sheet, one):
    router.include_router(part.router)
