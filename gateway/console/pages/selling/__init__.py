"""Selling: idle machines listed by the token, what that earns, what is known of a seller, and the house's side."""

from fastapi import APIRouter

from gateway.console.pages.selling import earnings, house, overview, standing, wizard

router = APIRouter()
for part in (overview, wizard, earnings, standing, house):
    router.include_router(part.router)

__all__ = ["router"]
