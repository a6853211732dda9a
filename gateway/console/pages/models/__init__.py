"""Models: where they run, hardware fit of further ones, and the servers that serve them.

Modules:
    changes    Changes that operators make to models: aliases, prices, loading and unloading, and pool servers
    cluster   The cluster's models: the form that runs one, and the buttons that load, stop and remove one
    overview   Every model that callers may name; the page of one model; and the hardware fit of further ones
    state      Data for the pages of the models, as far as the visitor may see it
"""

from fastapi import APIRouter

from gateway.console.pages.models import changes, cluster, overview

router = APIRouter()
for _part in (overview, changes, cluster):
    router.include_router(_part.router)
