"""/admin/advise: recommend where to run a model."""

from typing import Any

from fastapi import APIRouter

from gateway.admin.cluster_model import ModelQuestion, advise
from gateway.advice.facts import advice_facts
from gateway.api.authority import Operator
from gateway.app_state import Controller, Lanes, Settings

router = APIRouter(prefix="/admin")


@router.post("/advise")
async def show_advice(
    _: Operator, settings: Settings, lanes: Lanes, controller: Controller, question: ModelQuestion
) -> dict[str, Any]:
    """List every option to run a model, the recommended one with its reason, and the break-even of your machines."""
    return advice_facts(await advise(settings, lanes, controller, question))
