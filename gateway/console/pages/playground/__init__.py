"""Playground: talk to a model as any client does, and see where each answer came from and what it cost."""

from fastapi import APIRouter

from gateway.console.pages.playground import code, facts, page, send_message

router = APIRouter()
for _part in (page, send_message, code, facts):
    router.include_router(_part.router)
