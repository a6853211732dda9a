"""Playground: talk to a model as any client does, and see where each answer came from and what it cost."""

from fastapi import APIRouter

from gateway.console.pages.playground import asking, code, facts, showing

router = APIRouter()
for _part in (showing, asking, code, facts):
    router.include_router(_part.router)
