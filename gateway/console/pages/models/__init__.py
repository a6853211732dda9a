"""Models: where they run, hardware fit of further ones, and the servers that serve them."""

from fastapi import APIRouter

from gateway.console.pages.models import backends, fit, naming, overview, residence

router = APIRouter()
for _part in (overview, fit, backends, naming, residence):
    router.include_router(_part.router)
