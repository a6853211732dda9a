"""Models: where they run, hardware fit of further ones, and the servers that serve them.

Modules:
    changes    Changes that operators make to models: aliases, prices, loading and unloading, and pool servers
    overview   Every model that callers may name: its endpoints, state, size and price; and the page of one model
    state      Data for the pages of the models, as far as the visitor may see it
"""

from fastapi import APIRouter

from gateway.console.pages.models import changes, overview

router = APIRouter()
for _part in (overview, changes):
    router.include_router(_part.router)
