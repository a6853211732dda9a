"""`millrace market`: sellers, audit results about them, and the prompts used for audits."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from itertools import islice
from pathlib import Path
from random import SystemRandom
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.cli import output
from gateway.cli.command import Group
from gateway.cli.completion import Model
from gateway.cli.gateway_client import ask
from gateway.settings import Settings

if TYPE_CHECKING:
    from market.audits.audit_target import AuditTarget
    from market.audits.own_engine import OwnEngine
    from market.audits.probe_store import ProbeStore
    from market.audits.probes import Probe
    from market.protocol.audits.verdicts import Decision

app = Group("Marketplace sellers, and their audits.")

_FILE_BYTES_MAX = 16 * 2**20
_PROMPT_BYTES_MAX = 2**20
_ID_CHARS_MIN = 12


_COLUMNS: Mapping[str, output.Cell] = {
    "seller": lambda row: row["seller"][:_ID_CHARS_MIN],
    "model": "model",
    "quantization": "quantization",
    "audit": "looked_at",
    "answers good/bad": lambda row: f"{row['answered']:.0f}/{row['failed']:.0f}",
    "audits good/bad": lambda row: f"{row['audits_passed']:.0f}/{row['audits_failed']:.0f}",
    "status": lambda row: "suspended" if row["suspended_why"] else "new" if row["is_newcomer"] else "established",
}


def _show_sellers(found: dict[str, Any]) -> None:
    output.table_of(_COLUMNS, found["sellers"])
    for row in found["sellers"]:
        if row["suspended_why"]:
            output.say(f"{row['seller'][:_ID_CHARS_MIN]} is suspended: {row['suspended_why']}")
    for row in found["not_bought"]:
        output.say(f"{row['seller'][:_ID_CHARS_MIN]} {row['model']} is excluded: {row['reason']}")


@app.with_settings("sellers", _show_sellers)
def sellers(settings: Settings) -> Any:
    """List sellers with audit results and suspensions. Example: millrace market sellers"""
    return ask(settings, "GET", "/admin/market/sellers")


@app.with_settings("reinstate", "{reinstated:.12} is reinstated within seconds; it is audited like a new seller")
def reinstate(
    settings: Settings,
    seller: Annotated[str, typer.Argument(help="The seller's identity, or its first 12 digits.")],
) -> Any:
    """Reinstate a seller and clear its record. Example: millrace market reinstate 5f0c9a41e2b7"""
    probe_store = _shelf(settings)
    found = _suspended(probe_store, seller)
    probe_store.reinstate(found)
    return {"reinstated": found}


def _show_confirmed(found: list[dict[str, Any]]) -> None:
    for each in found:
        output.say(f"{each['model']}: {'; '.join(dict.fromkeys(each['reasons']))}")
        output.say(
            "your machines pass the audits that it failed: this is proof"
            if each["is_proof"]
            else "this is not proof yet"
        )


@app.with_settings("confirm", _show_confirmed)
def confirm(
    settings: Settings,
    seller: Annotated[str, typer.Argument(help="A suspended seller's identity, or its first 12 digits.")],
    model: Annotated[str, typer.Option(help="Your machines' name for the model that the seller claims to sell.")],
) -> Any:
    """Repeat a seller's failed audits on your machines.

    Example: millrace market confirm 5f0c9a41e2b7 --model mill-1b
    """
    decided = asyncio.run(_confirmed(settings, _suspended(_shelf(settings), seller), model))
    return [
        {"model": target.model, "reasons": list(decision.reasons), "is_proof": decision.action == "forfeit"}
        for target, decision in decided
    ]


@app.with_settings("freeze", "{frozen} of {tried} prompts are now canaries for {sold_as}")
def freeze(
    settings: Settings,
    model: Annotated[str, Model("A model on this gateway's machines.")],
    prompts: Annotated[
        Path | None, typer.Option(help="File with one prompt per line; default: generated prompts.")
    ] = None,
    count: Annotated[int, typer.Option(help="Number of prompts to try.", min=1, max=1000)] = 40,
    weights: Annotated[
        str | None, typer.Option(help="SHA-256 of the weights, if the backend does not report it.")
    ] = None,
    quantization: Annotated[str | None, typer.Option(help="Quantization as in listings, e.g. bf16.")] = None,
    texts: Annotated[
        bool,
        typer.Option(
            "--texts",
            help="Compare whole texts if the backend reports no log probabilities: near ties may differ "
            "between honest engines, so use this only for sellers with the same engine.",
        ),
    ] = False,
) -> Any:
    """Record your machines' answers as canaries, to audit sellers. Example: millrace market freeze mill-1b"""
    sold_as = _sold_as(settings, model, weights, quantization)
    chosen = _prompts(prompts, count)
    probes = asyncio.run(_frozen(settings, model, sold_as, chosen, texts=texts))
    probe_store = _shelf(settings)
    for probe in probes:
        probe_store.add_probe(probe)
    return {"frozen": len(probes), "tried": len(chosen), "sold_as": sold_as}


@app.with_settings("export", "{canaries} canaries written to {file}")
def export(
    settings: Settings,
    file: Annotated[Path, typer.Argument(help="New file; anyone who reads it can pass these audits.")],
) -> Any:
    """Write all canaries to a file for trading partners' gateways. Example: millrace market export canaries.bin"""
    import msgspec

    probes = list(_shelf(settings).all_probes())
    with file.open("xb") as opened:
        opened.write(msgspec.msgpack.encode(probes))
    return {"file": str(file), "canaries": len(probes)}


@app.with_settings("import", "{canaries} canaries imported")
def import_(
    settings: Settings,
    file: Annotated[Path, typer.Argument(help="File from `millrace market export FILE` of someone you trust.")],
) -> Any:
    """Import another gateway's canaries. Example: millrace market import canaries.bin"""
    import msgspec

    from market.audits.probes import Probe

    try:
        with file.open("rb") as opened:
            probes = msgspec.msgpack.decode(opened.read(_FILE_BYTES_MAX), type=list[Probe])
    except msgspec.MsgspecError as error:
        output.fail(f"{file} is not a canary file: {error}")
    probe_store = _shelf(settings)
    for probe in probes:
        probe_store.add_probe(probe)
    return {"canaries": len(probes)}


def _suspended(probe_store: "ProbeStore", seller: str) -> str:
    found = [
        each for each in probe_store.suspensions() if len(seller) >= _ID_CHARS_MIN and each.startswith(seller)
    ]
    if len(found) != 1:
        output.fail(
            "none or several suspended sellers have an identity that starts with this; see `millrace market sellers`"
        )
    return found[0]


def _shelf(settings: Settings) -> "ProbeStore":
    from market.audits.probe_store import ProbeStore
    from runtime.data_folder import DataFolder

    folder = DataFolder(settings.data_dir).market
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return ProbeStore(folder / "audits.db")


def _sold_as(settings: Settings, model: str, weights: str | None, quantization: str | None) -> str:
    from market.audits.probes import sold_as

    models = {each["id"]: each for each in ask(settings, "GET", "/admin/idle")["models"]}
    if model not in models:
        output.fail(f"{model} is not available on your machines now; available: {', '.join(models) or 'none'}")
    weights = weights or models[model]["weights_sha256"]
    quantization = quantization or models[model]["quantization"]
    if not weights or not quantization:
        output.fail("the backend does not report its weights; set --weights and --quantization")
    return sold_as(weights.lower(), quantization)


def _prompts(file: Path | None, count: int) -> list[str]:
    from market.audits.prompts import questions

    if file is None:
        return list(islice(questions(SystemRandom()), count))
    try:
        with file.open() as opened:
            lines = [line.strip() for line in opened.read(_PROMPT_BYTES_MAX).splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        output.fail(f"{file}: {getattr(error, 'strerror', None) or 'not a text file'}")
    return [line for line in lines if line][:count]


async def _frozen(
    settings: Settings, model: str, sold_as: str, chosen: list[str], *, texts: bool
) -> list["Probe"]:
    from market.audits.canary_factory import freeze_canaries

    async with _own_engine(settings, needs_logprobs=not texts, needs_end=texts) as engine:
        return await freeze_canaries(sold_as, model, chosen, engine.answer)


async def _confirmed(settings: Settings, seller: str, model: str) -> list[tuple["AuditTarget", "Decision"]]:
    from market.audits.confirmation import confirm_failures

    async with _own_engine(settings, needs_logprobs=False, needs_end=False) as engine:
        return await confirm_failures(_shelf(settings), seller, model, engine.answer)


@asynccontextmanager
async def _own_engine(settings: Settings, *, needs_logprobs: bool, needs_end: bool) -> AsyncGenerator["OwnEngine"]:
    from market.audits.own_engine import OwnEngine
    from runtime.data_folder import DataFolder

    running = DataFolder(settings.data_dir).read_running()
    key = ask(settings, "POST", "/admin/preemptible-key")["key"]
    assert running is not None, "it has just answered"
    engine = OwnEngine(running["base_url"], key, needs_logprobs=needs_logprobs, needs_end=needs_end)
    try:
        yield engine
    finally:
        await engine.close()
