"""Requests: the request log with routing decisions."""

from fastapi import APIRouter

from gateway.console.pages.requests import one, request_list, sheet

router = APIRouter()
# The route with an id in its path comes last; it would match the other routes' paths.
for part in (request_list, sheet, one):
    router.include_router(part.router)
