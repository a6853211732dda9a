"""Selling: listing idle capacity, earnings, seller status, and the marketplace's pages for operators."""

from fastapi import APIRouter

from gateway.console.pages.selling import earnings, house, overview, seller_status, wizard

router = APIRouter()
for part in (overview, wizard, earnings, seller_status, house):
    router.include_router(part.router)

__all__ = ["router"]
