"""Models: what runs where, whether another one fits, and the servers that have them."""

from fastapi import APIRouter

from gateway.console.pages.models import backends, fit, naming, overview, residence

router = APIRouter()
for _part in (overview, fit, backends, naming, residence):
    router.include_router(_part.router)
