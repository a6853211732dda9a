"""Advice from a running gateway: its machines and links, its pool, its providers' prices, its costs."""

import asyncio
from dataclasses import dataclass, replace
from pathlib import Path

from accounting.metering.own_cost import CostTerms
from accounting.money import parse_usd
from cluster.controller import Controller
from cluster.errors import ModelNotFound
from cluster.models.layer_cost import Precision
from cluster.models.model_card import ModelCard
from gateway.advice.advice import Advice, advise
from gateway.advice.model_shape import read_shape
from gateway.advice.question import AdviceQuestion, CloudPrice, OwnCost, PoolCopy, is_same_model
from gateway.lanes.base import Lanes
from gateway.lanes.pool.lane import PoolLane
from gateway.settings import CloudSettings, CostsSettings, Settings


@dataclass(frozen=True, slots=True)
class Wishes:
    """Values that override the settings. `compare` names the cloud model to take the price from."""

    context_tokens: int | None = None
    precision: Precision | None = None
    compare: str | None = None


_NO_WISHES = Wishes()


async def ask_advice(
    settings: Settings,
    lanes: Lanes,
    controller: Controller,
    reference: str,
    wishes: Wishes = _NO_WISHES,
) -> Advice:
    """Return advice on where to run a model. Nothing changes and no weights are fetched.

    Raises ModelNotFound if no pool server or provider knows it either, ModelInvalid, ModelUnsupported.
    """
    try:
        question = await asyncio.to_thread(base_question, settings, reference)
    except ModelNotFound:
        if not (pool_copies(lanes, reference) or cloud_prices(settings.cloud, lanes, reference)):
            raise
        question = _of_settings(settings, reference, None)
    topology = controller.topology()
    members = tuple(member for member in topology.members if member.node_id not in topology.draining)
    question = with_wishes(
        replace(
            question,
            members=members,
            network=topology.network,
            serving=topology.model,
            pool=pool_copies(lanes, question.name),
            cloud=cloud_prices(settings.cloud, lanes, wishes.compare or question.name),
        ),
        wishes,
    )
    # On a thread: a plan for many machines takes seconds.
    return await asyncio.to_thread(advise, question)


def base_question(settings: Settings, reference: str) -> AdviceQuestion:
    """Return the model and the settings' values, without any machine yet. Raises as `read_shape`."""
    return _of_settings(settings, *read_shape(reference, models_folder(settings)))


def _of_settings(settings: Settings, name: str, card: ModelCard | None) -> AdviceQuestion:
    cluster = settings.cluster
    return AdviceQuestion(
        name,
        card,
        (),
        own_cost(settings.costs),
        context_tokens=cluster.context_tokens,
        precision=cluster.precision,
        goal=cluster.goal,
        slots=cluster.slots,
        stages_min=cluster.stages_min or max(1, cluster.nodes),
    )


def with_wishes(question: AdviceQuestion, wishes: Wishes) -> AdviceQuestion:
    return replace(
        question,
        context_tokens=wishes.context_tokens or question.context_tokens,
        precision=wishes.precision or question.precision,
    )


def models_folder(settings: Settings) -> Path:
    """Return the folder of pulled models, the same as the controller's."""
    return settings.data_dir / "cluster" / "models"


def own_cost(costs: CostsSettings) -> OwnCost:
    terms = CostTerms(
        parse_usd(costs.electricity_usd_per_kwh),
        parse_usd(costs.machine_usd),
        costs.life_years,
        float(costs.watts_idle),
    )
    return OwnCost(terms, float(costs.watts))


def pool_copies(lanes: Lanes, name: str) -> tuple[PoolCopy, ...]:
    lane = lanes.get("pool")
    if not isinstance(lane, PoolLane):
        return ()
    found = [
        PoolCopy(
            offer.backend,
            offer.served_as or offer.model,
            offer.is_resident,
            offer.state == "ready",
            offer.note,
            offer.quantization,
            offer.context_tokens,
            offer.load_s,
        )
        for backend in lane.pool.backends()
        for offer in backend.offers.values()
        if is_same_model(offer.model, name) or (offer.served_as and is_same_model(offer.served_as, name))
    ]
    # A backend may list it under several names.
    return tuple({copy.backend: copy for copy in reversed(found)}.values())


def cloud_prices(settings: CloudSettings, lanes: Lanes, name: str) -> tuple[CloudPrice, ...]:
    lane = lanes.get("cloud")
    if lane is None:
        return ()
    models = settings.models
    named = [alias for alias, entry in models.items() if name in (alias, entry.model)]
    alike = named or [
        alias for alias, entry in models.items() if is_same_model(alias, name) or is_same_model(entry.model, name)
    ]
    offers = [(alias, offer) for alias in alike for offer in lane.offers(alias)]
    return tuple(CloudPrice(alias, offer.price.price) for alias, offer in offers if offer.price is not None)
