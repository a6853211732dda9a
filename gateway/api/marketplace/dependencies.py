"""Dependencies of a marketplace's routes."""

from typing import Annotated

from fastapi import Depends, Request

from gateway.services import Services
from market.marketplace.marketplace import Marketplace


def _services(request: Request) -> Services:
    services: Services = request.app.state.services
    return services


def _marketplace(request: Request) -> Marketplace:
    marketplace = _services(request).marketplace
    assert marketplace is not None, "the routes are there where a marketplace is"
    return marketplace


Open = Annotated[Marketplace, Depends(_marketplace)]
Shared = Annotated[Services, Depends(_services)]
