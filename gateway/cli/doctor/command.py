"""`millrace doctor`: checks of this machine and its surroundings, with a remedy for each problem."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from gateway.cli import output
from gateway.cli.command import AsJson, DataDir
from gateway.cli.doctor.finding import Finding, fail, ok
from gateway.settings import Settings, default_data_dir, read_settings
from runtime.settings import SettingsInvalid

_ORDER = {"fail": 0, "warn": 1, "unseen": 2, "ok": 3}
_STYLES = {"fail": "bold red", "warn": "yellow", "unseen": "dim", "ok": "green"}
_LEVELS = {"fail": "error", "warn": "warning", "unseen": "unknown", "ok": "ok"}


def doctor(
    fix: Annotated[bool, typer.Option("--fix", help="Fix issues that need no confirmation.")] = False,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Check this machine and the gateway, running or not; status 1 on errors. Example: millrace doctor"""
    found = list(_findings(data_dir))
    mended: list[str] = []
    if fix:
        mended = [done for finding in found if (done := _mended(finding))]
        found = list(_findings(data_dir)) if mended else found
    found.sort(key=lambda finding: _ORDER[finding.level])
    if as_json:
        output.data({"findings": [_facts(finding) for finding in found], "mended": mended})
    else:
        rows = [((_LEVELS[each.level], _STYLES[each.level]), each.area, each.what, each.remedy) for each in found]
        output.table(("", "area", "finding", "remedy"), rows)
        for done in mended:
            output.say(("fixed:", "bold"), f" {done}")
    _end(found, fix=fix)


def _findings(data_dir: Path | None) -> Iterator[Finding]:
    from gateway.cli.doctor.machine import look_at_machine
    from gateway.cli.doctor.outside import look_outside
    from gateway.cli.doctor.stores import look_at_stores, stale_notice
    from runtime.data_folder import DataFolder

    settings, finding = _settings(data_dir)
    yield finding
    if settings is None:
        # Check what does not depend on the settings.
        yield from look_at_machine(data_dir or default_data_dir())
        return
    yield from look_at_machine(settings.data_dir)
    yield from look_at_stores(settings)
    if stale := stale_notice(DataFolder(settings.data_dir)):
        yield stale
    yield from look_outside(settings)


def _settings(data_dir: Path | None) -> tuple[Settings | None, Finding]:
    try:
        settings = read_settings(**({"data_dir": data_dir} if data_dir else {}))
    except SettingsInvalid as error:
        return None, fail("settings", str(error), "correct it; `millrace config path` prints the file's path")
    return settings, ok("settings", "all settings are valid")


def _mended(finding: Finding) -> str:
    """Apply the finding's fix; return what was done, or ""."""
    if finding.mend is None:
        return ""
    try:
        return finding.mend()
    except OSError as error:
        output.say(("not fixed:", "bold red"), f" {finding.what}: {error.strerror}")
        return ""


def _end(findings: list[Finding], *, fix: bool) -> None:
    fails = sum(finding.level == "fail" for finding in findings)
    warns = sum(finding.level == "warn" for finding in findings)
    fixable = sum(finding.mend is not None for finding in findings)
    if fixable and not fix:
        output.say(f"{fixable} {'issue' if fixable == 1 else 'issues'} can be fixed with --fix")
    if fails:
        output.fail(f"{_counted(fails, 'error')}, {_counted(warns, 'warning')}")
    output.say(f"0 errors, {_counted(warns, 'warning')}")


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _facts(finding: Finding) -> dict[str, Any]:
    return {
        "area": finding.area,
        "level": finding.level,
        "what": finding.what,
        "remedy": finding.remedy,
        "fixable": finding.mend is not None,
    }
