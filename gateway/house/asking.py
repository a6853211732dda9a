"""What routes of a house are given."""

from typing import Annotated, Any, TypeAlias

from fastapi import Depends, Request

from gateway.house.house import House
from gateway.services import Services

Facts: TypeAlias = dict[str, Any]


def _services(request: Request) -> Services:
    services: Services = request.app.state.services
    return services


def _house(request: Request) -> House:
    house = _services(request).house
    assert house is not None, "the routes are there where a house is"
    return house


Open = Annotated[House, Depends(_house)]
Shared = Annotated[Services, Depends(_services)]
