"""Requests: the request log with routing decisions.

Modules:
    one           One request: its timeline, the routing decision, its ledger entry, and its text if it is
                  stored
    request_list  The request log, newest first: filtered by the query string, in pages, live on the newest
                  page, and as CSV
    wanted        The filter in the query string, and the requests that a visitor may see
"""

from fastapi import APIRouter

from gateway.console.pages.requests import one, request_list

router = APIRouter()
# The route with an id in its path comes last; it would match the other routes' paths.
for part in (request_list, one):
    router.include_router(part.router)
