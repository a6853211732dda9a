"""/admin/route: simulate where a request would go now and why, and show the accuracy of predictions."""

from typing import Any

from fastapi import APIRouter

from gateway.admin import route_trial
from gateway.admin.route_trial import RouteQuestion
from gateway.api.authority import Operator
from gateway.app_state import Router

router = APIRouter(prefix="/admin/route")


@router.post("/explain")
async def explain_route(authority: Operator, live: Router, question: RouteQuestion) -> dict[str, Any]:
    """Simulate routing: candidates with every term of the formula, best first, and what each rule ruled out."""
    return await route_trial.explain_route(authority, live, question)


@router.get("/accuracy")
async def show_accuracy(_: Operator, live: Router) -> dict[str, dict[str, float]]:
    """Show the median error of predicted seconds by backend, absolute and relative to the measured time."""
    return live.accuracy()
