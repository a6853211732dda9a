"""Models: where they run, hardware fit of further ones, and the servers that serve them.

Modules:
    backends   Pool servers: adding, scanning, draining, removing
    names      A model's aliases and its price at the provider, set on the model's page
    overview   Every model that callers may name: its endpoints, state, size and price; and the page of one model
    residence  Loading and unloading models: at backends that support it, and in a cluster without a model
    state      Data for the pages of the models, as far as the visitor may see it
"""

from fastapi import APIRouter

from gateway.console.pages.models import backends, names, overview, residence

router = APIRouter()
for _part in (overview, backends, names, residence):
    router.include_router(_part.router)
