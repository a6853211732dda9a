"""Models: where they run, hardware fit of further ones, and the servers that serve them.

Modules:
    backends   Pool servers: adding, scanning, draining, removing
    fit        Hardware fit of a model, where it should run, and the break-even of local machines: a recommendation
    names      A model's aliases and its price at the provider, set on the model's page
    overview   Every model that callers may name: its endpoints, state, size and price; and the page of one model
    residence  Loading and unloading models: at backends that support it, and in a cluster without a model
    set_terms  A model's price and aliases as operators set them, which override the settings
    state      Data for the pages of the models, as far as the visitor may see it
"""

from fastapi import APIRouter

from gateway.console.pages.models import backends, fit, names, overview, residence

router = APIRouter()
for _part in (overview, fit, backends, names, residence):
    router.include_router(_part.router)
