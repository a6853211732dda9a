"""Models: where they run, hardware fit of further ones, and the servers that serve them."""

from fastapi import APIRouter

from gateway.console.pages.models import backends, fit, names, overview, residence

router = APIRouter()
for _part in (overview, fit, backends, names, residence):
    router.include_router(_part.router)
