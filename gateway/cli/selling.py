"""`millrace sell`: sell idle capacity, beside the gateway that runs on the same data directory."""

import fcntl
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from gateway.cli import output
from gateway.cli.command import AsJson, DataDir, refusals, settings_from
from gateway.cli.serving import warn_of_open_folder
from runtime.data_folder import DataFolder
from runtime.settings import SettingsInvalid

UsdText = Annotated[str | None, typer.Option(help="USD per million tokens, e.g. 0.20.")]


def sell(
    context: typer.Context,
    model: Annotated[str | None, typer.Option(help="Model to sell, by its name in the gateway.")] = None,
    prompt_usd_per_mtok: UsdText = None,
    completion_usd_per_mtok: UsdText = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Sell idle capacity.

    Example: millrace sell --model m --prompt-usd-per-mtok 0.05 --completion-usd-per-mtok 0.2
    """
    with refusals(context):
        models = _models(model, prompt_usd_per_mtok, completion_usd_per_mtok)
    settings = settings_from(data_dir, selling={"models": models})
    if not settings.selling.models:
        output.fail("nothing to sell: use --model with its prices, or set selling.models", output.WRONG_USAGE)
    # Imports take most of a second; `millrace --help` should not wait for them.
    import asyncio

    from accounting.proofs.signing_key import SigningKeyUnusable
    from market.errors import IdentityInvalid
    from market.network.identity import OwnIdentity
    from market.seller.process import RunningSeller, run
    from runtime.logs import configure_logs

    def announce(selling: RunningSeller) -> None:
        if as_json:
            output.data({"endpoint": selling.endpoint, "identity": selling.identity, "pid": os.getpid()})
            return
        output.say((f"{'selling as':<14}", "bold"), selling.identity)
        output.say((f"{'address':<14}", "bold"), selling.endpoint or "none; jobs are fetched")

    configure_logs(settings.log.style)
    folder = DataFolder(settings.data_dir)
    try:
        folder.prepare()
        warn_of_open_folder(folder)
        if folder.read_running() is None:
            output.fail(
                f"no gateway is running on {folder.path}; start one with `millrace up`", output.UNREACHABLE
            )
        market = folder.path / "market"
        own = OwnIdentity.open(market)
        lock = _only_seller(market)
        try:
            asyncio.run(run(settings.selling, folder, own, announce))
        finally:
            os.close(lock)
    except (SettingsInvalid, IdentityInvalid, SigningKeyUnusable, OSError) as error:
        output.fail(str(error))


def _models(model: str | None, prompt_usd: str | None, completion_usd: str | None) -> list[dict[str, Any]] | None:
    """Return the models given on the command line; end the command if an option is missing."""
    given = (model, prompt_usd, completion_usd)
    if given == (None, None, None):
        return None
    if None in given:
        output.fail(
            "--model, --prompt-usd-per-mtok and --completion-usd-per-mtok must be used together",
            output.WRONG_USAGE,
        )
    from gateway.admin.selling import ListedModel, SalePrice, with_model

    price = SalePrice.model_validate({"prompt": prompt_usd, "completion": completion_usd})
    return with_model([], ListedModel.model_validate({"model": model}), price)


def _only_seller(market: Path) -> int:
    """Lock the folder for selling; the caller keeps the descriptor. Raises SettingsInvalid."""
    descriptor = os.open(market / "selling.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise SettingsInvalid(f"another `millrace sell` is running on {market.parent}") from None
    return descriptor
