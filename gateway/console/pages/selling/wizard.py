"""“List idle capacity”: model, idle conditions, price, connectivity; checked and saved for the agent.

The answers are in the query string, so that every step can be revisited. Only the marketplace key is sent with
the last step, and it is never shown. The agent is a separate process that only the owner starts: the last page
shows the command, and waits for the agent.
"""

import asyncio
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, cast

from fastapi import APIRouter, Request, Response

from accounting.money import format_usd
from gateway.admin.selling import (
    Connectivity,
    ListedModel,
    NewListing,
    checked,
    remove_listing,
    save_listing,
    section_of,
    tables,
)
from gateway.admin.settings_file import SECRETS, SettingsFile, as_toml
from gateway.advice.service import own_cost
from gateway.app_state import bundle
from gateway.console.access import Operator
from gateway.console.forms import Form, check, read_form, sentence
from gateway.console.pages.selling.access import PATH, Sources, command_of, price, settings_now
from gateway.console.pages.selling.accounts import account_now
from gateway.console.pages.selling.steps import DAYS, STEPS, TITLES, StepName, Written, shown
from gateway.console.pages.selling.wares_here import (
    Machine,
    SalesPace,
    cheapest,
    cloud_prices_of,
    models_here,
    pace_now,
    power_nano_per_mtok,
    preview,
    share_nano,
    suggested,
)
from gateway.console.renderer import go, page
from gateway.settings import FILE_NAME
from runtime.errors import NotFound, RequestInvalid, ServiceError
from runtime.settings import SettingsInvalid

LIST = f"{PATH}/list"
FEE_BPS = 500
"""The default fee of a marketplace, used while its own fee is unknown."""
_QUERY_MAX = 60

router = APIRouter(prefix=LIST)


@dataclass(frozen=True, slots=True)
class _Wizard:
    visitor: Operator
    account: Sources
    machine: Machine

    @property
    def file(self) -> SettingsFile:
        return SettingsFile.of(self.account.settings.data_dir)


Wizard = Annotated[_Wizard, bundle(_Wizard)]


@router.get("")
async def begin(request: Request, wizard: Wizard) -> Response:
    return await _step(request, wizard, "what")


@router.get("/{step}")
async def step(request: Request, wizard: Wizard, step: str) -> Response:
    """Show a step of the wizard, or the summary for `check`. Raises NotFound if there is no such step."""
    if step == "check":
        return await _check(wizard, _given(request))
    if step not in STEPS:
        raise NotFound("Step not found.")
    return await _step(request, wizard, cast(StepName, step))


@router.post("/write")
async def write(wizard: Wizard) -> Response:
    """Save the section to millrace.toml, which the agent reads when it starts."""
    form = await read_form(wizard.visitor, Written)
    given = {name: values for name, values in form.given.items() if name not in SECRETS}
    answers, forms, wrong = _answers(given)
    if answers is None:
        return await _show(wizard, wrong, forms, given, 400)
    if form.value is None:
        return await _check(wizard, given, form, 400)
    try:
        before = await _section_before(wizard.file)
        section = await _section(wizard, before, answers)
        if form.value.marketplace_key:
            section["marketplace_key"] = form.value.marketplace_key
        settings, errors = checked(section)
        if settings is None:
            return await _check(wizard, given, Form(errors=errors, given=given), 400)
        await save_listing(wizard.visitor.authority, wizard.file, answers.what.model, section, before=before)
    except (SettingsInvalid, ServiceError) as error:
        refused: Form[Written] = Form(given=given)
        return await _check(wizard, given, refused.refused(sentence(str(error))), 409)
    return go(wizard.visitor, f"{PATH}/started", f"Saved to {FILE_NAME}. Start or restart the agent.")


@router.post("/unlist")
async def unlist(wizard: Wizard) -> Response:
    """Remove one model from millrace.toml; a running agent sells it until it is restarted.

    Raises RequestInvalid if no model is named or the file is invalid, and NotFound if the file lacks the model.
    """
    form = await read_form(wizard.visitor, ListedModel)
    if form.value is None:
        raise RequestInvalid("model: name the model to remove", param="model")
    await remove_listing(wizard.visitor.authority, wizard.file, form.value.model)
    return go(
        wizard.visitor,
        PATH,
        f"{form.value.model} was removed from {FILE_NAME}. Restart the agent to stop selling it.",
    )


def _given(request: Request) -> dict[str, list[str]]:
    """Return the query as a form. Raises RequestInvalid if it has more fields than the steps."""
    query = request.query_params
    if len(query.multi_items()) > _QUERY_MAX:
        raise RequestInvalid("The address has too many fields.")
    known = {name for model in STEPS.values() for name in model.model_fields}
    return {name: query.getlist(name) for name in query if name in known}


async def _step(request: Request, wizard: Wizard, name: StepName) -> Response:
    """Show a step if those before it are valid; else the first invalid one."""
    given = _given(request)
    for before in STEPS:
        if before == name:
            break
        form: Form[Any] = check(STEPS[before], given)
        if form.value is None:
            return await _show(wizard, before, {before: form}, given, 400)
    return await _show(wizard, name, {}, given)


def _answers(given: dict[str, list[str]]) -> tuple[NewListing | None, dict[StepName, Form[Any]], StepName]:
    """Return all answers, or None with the first invalid step."""
    forms: dict[StepName, Form[Any]] = {name: check(model, given) for name, model in STEPS.items()}
    wrong = next((name for name, form in forms.items() if form.value is None), None)
    if wrong is not None:
        return None, forms, wrong
    what, when, price, way = (cast(Any, forms[name].value) for name in STEPS)
    return NewListing(what, when, price, way), forms, "what"


async def _show(
    wizard: Wizard,
    name: StepName,
    forms: Mapping[StepName, Form[Any]],
    given: dict[str, list[str]],
    status: int = 200,
) -> Response:
    section = await _section_before(wizard.file)
    model = given.get("model", [""])[0]
    form = forms.get(name)
    if form is None:
        answers = {field: values for field, values in given.items() if field in STEPS[name].model_fields}
        form = Form(given=answers) if answers else shown(section, model)[name]
    values = await _of_step(wizard, name, model, section)
    carried = [
        (field, value)
        for field, some in given.items()
        if field not in STEPS[name].model_fields
        for value in some
        if value
    ]
    return page(
        "selling/list.html",
        wizard.visitor,
        status,
        step=name,
        steps=TITLES,
        form=form,
        carried=carried,
        model=model,
        price=price,
        tab="list",
        **values,
    )


async def _of_step(wizard: Wizard, name: StepName, model: str, section: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a step shows in addition to its fields."""
    if name == "what":
        sold = tables(section, "models")
        models = await models_here(wizard.machine, sold)
        return {"models": models, "sold": [str(one.get("model")) for one in sold]}
    if name == "when":
        return {"days": DAYS, "hours": len(tables(section, "hours"))}
    if name == "price":
        return await _prices(wizard, model)
    program = (await settings_now(wizard.account.settings)).cloudflared
    return {
        "has_cloudflared": shutil.which(program) is not None,
        "cloudflared": program,
        "is_marketplace": wizard.account.marketplace is not None,
        "allows_loopback": bool(section.get("allows_loopback")),
    }


async def _prices(wizard: Wizard, model: str) -> dict[str, Any]:
    machine, settings, lanes = wizard.machine, wizard.machine.settings, wizard.machine.lanes
    fee_bps, is_fee_known = await _fee(wizard)
    pace: SalesPace | None = await asyncio.to_thread(pace_now, machine.log, model)
    cloud = await asyncio.to_thread(cloud_prices_of, settings, lanes, model)
    plan = machine.controller.topology().plan
    machines = len(plan.stages) if plan and model in lanes["cluster"].models() else 1
    power_nano = power_nano_per_mtok(own_cost(settings.costs), machines, pace)
    hint = suggested(cloud, power_nano, fee_bps)
    return {
        "pace": pace,
        "cloud": cheapest(cloud),
        "power_nano": power_nano,
        "hint": hint,
        "hint_share": (share_nano(hint.prompt_nano, fee_bps), share_nano(hint.completion_nano, fee_bps))
        if hint
        else None,
        "hint_texts": (format_usd(hint.prompt_nano), format_usd(hint.completion_nano)) if hint else ("", ""),
        "fee_percent": fee_bps / 100,
        "is_fee_known": is_fee_known,
    }


async def _fee(wizard: Wizard) -> tuple[int, bool]:
    """Return the fee, and whether the marketplace confirmed it."""
    account = await account_now(wizard.visitor, wizard.account)
    if account is None:
        return FEE_BPS, False
    try:
        return (await account.conditions()).fee_bps, True
    except ServiceError:
        return FEE_BPS, False


async def _check(
    wizard: Wizard,
    given: dict[str, list[str]],
    form: Form[Any] | None = None,
    status: int = 200,
) -> Response:
    """Show a summary of the listing, with the file and the command."""
    answers, forms, wrong = _answers(given)
    if answers is None:
        return await _show(wizard, wrong, forms, given, 400)
    section = await _section(wizard, await _section_before(wizard.file), answers)
    settings, errors = checked(section)
    if settings is None and set(errors) & set(Connectivity.model_fields):
        form_of_way: Form[Any] = Form(errors=errors, given=given)
        return await _show(wizard, "way", {"way": form_of_way}, given, 400)
    fee_bps, is_fee_known = await _fee(wizard)
    lacks = await preview(wizard.machine, settings, answers.what.model) if settings else None
    return page(
        "selling/check.html",
        wizard.visitor,
        status,
        step="check",
        steps=TITLES,
        tab="list",
        form=form or Form(errors=errors),
        carried=[(field, value) for field, some in given.items() for value in some if value],
        answers=answers,
        lacks=lacks,
        price=price,
        content=as_toml(section, is_masked=True),
        path=str(wizard.file.path),
        command=command_of(wizard.account.settings.data_dir),
        has_key="marketplace_key" in section,
        needs_key=bool(answers.way.marketplace_url),
        fee_percent=fee_bps / 100,
        is_fee_known=is_fee_known,
        shares=(share_nano(answers.price.prompt, fee_bps), share_nano(answers.price.completion, fee_bps)),
    )


async def _section(wizard: Wizard, before: Mapping[str, Any], answers: NewListing) -> dict[str, Any]:
    pace = await asyncio.to_thread(pace_now, wizard.machine.log, answers.what.model)
    rate = int(pace.tokens_per_s) if pace else None
    return section_of(before, answers, rate)


async def _section_before(file: SettingsFile) -> dict[str, Any]:
    """Return the section in the file. Raises RequestInvalid if the file cannot be read."""
    try:
        return await asyncio.to_thread(file.section)
    except SettingsInvalid as error:
        raise RequestInvalid(str(error)) from None
