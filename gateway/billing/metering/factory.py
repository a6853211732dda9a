"""Opens the parts that counting and charging need: tokenizers, and recorded prices."""

import time
from collections.abc import Callable, Mapping
from functools import partial

import structlog
from sqlalchemy.orm import Session

from accounting.metering import versions
from accounting.metering.prices import PricedModel
from accounting.metering.tokenizers import Pinned, Tokenizers
from cluster.controller import Controller
from gateway.billing.recount import Recounter
from gateway.lanes.base import Lane
from gateway.metrics.metrics import Metrics
from gateway.settings import LaneName, MeteringSettings

log = structlog.get_logger(__name__)

_TOKENIZER = "tokenizer.json"


def named_tokenizers(settings: MeteringSettings) -> dict[str, Pinned]:
    """Return the tokenizers that the admin names, by their SHA-256: the market counts by no others."""
    return {each.sha256: Pinned(each.path, each.sha256) for each in settings.tokenizers.values()}


def open_recounter(settings: MeteringSettings, metrics: Metrics) -> Recounter:
    """Counts with the tokenizers that the owner names."""
    named = {model: Pinned(each.path, each.sha256) for model, each in settings.tokenizers.items()}
    return Recounter(Tokenizers(named), metrics, settings.check_ratio)


def use_cluster(recounter: Recounter, controller: Controller) -> None:
    """Use the tokenizers of the cluster's models, too; each is stored beside its model and pinned by its digest."""
    recounter.tokenizers.look_also(partial(_of_cluster, controller))


def write_prices(lanes: Mapping[LaneName, Lane], write: Callable[[], Session]) -> None:
    """Record the current prices before any request is charged by them."""
    prices = {
        name: offer.price
        for lane in lanes.values()
        for name in lane.models()
        for offer in lane.offers(name)
        if offer.price is not None and offer.answers_as == name
    }
    write_versions(prices, write)


def write_versions(prices: Mapping[str, PricedModel], write: Callable[[], Session]) -> None:
    """Raises SQLAlchemyError."""
    if not prices:
        return
    with write() as session, session.begin():
        if new := versions.record(session, prices, time.time_ns()):
            log.info("new prices", count=new)


def _of_cluster(controller: Controller, name: str) -> Pinned | None:
    chat = controller.chat_of(name)
    if chat is None or (model := chat.model) is None:
        return None
    entry = model.manifest.files.get(_TOKENIZER)
    return Pinned(model.folder / _TOKENIZER, entry.sha256) if entry else None
