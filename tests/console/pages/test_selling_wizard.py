"""The wizard that lists idle capacity: what is asked, and what it writes into millrace.toml."""

import re
import tomllib
from pathlib import Path

import pytest

from accounting.money import Price
from gateway.admin.settings_file import SettingsFile, as_toml, with_section
from gateway.console.pages.selling.wares_here import share_nano, suggested
from gateway.identity.audit import AuditLog, Filter
from market.settings.seller import SellingSettings
from runtime.errors import Conflict, Overloaded
from tests.console.browsing import visiting
from tests.console.pages.settings_files import settings_file
from tests.fakes import pool_servers as servers
from tests.gateway.api.conftest import Served
from tests.market.marketplace.conftest import USD

pytestmark = pytest.mark.anyio

SELLING = "/console/selling"

GIVEN = {
    "model": "qwen3:8b",
    "slots_max": "2",
    "minutes": "10",
    "when": "hours",
    "days": ["5", "6"],
    "begins": "22:00",
    "ends": "07:00",
    "utc_offset": "+01:00",
    "prompt": "0.05",
    "completion": "0.20",
    "tunnel": "none",
    "marketplace_url": "https://market.example",
    "country_code": "DE",
}


async def test_the_wizard_writes_what_the_agent_reads_and_leaves_the_rest_alone(served: Served) -> None:
    folder: Path = served.services.settings.data_dir
    mine = '# my own words\n[costs]\nwatts = 90 # measured\n\n[selling]\nregion = "north"\nmarketplace_key = "mr-old"\n'
    mine += "[[selling.models]]\nmodel = 'other'\nprompt_usd_per_mtok = '1.00'\ncompletion_usd_per_mtok = '2.00'\n"
    mine += "\n[log]\nlevel = 'info'\n"
    server = servers.ollama()
    with settings_file(served, mine) as file:
        async with servers.running(server), visiting(served) as owner:
            await owner.post("/console/models/servers", name="desk", base_url=server.base_url, kind="ollama")
            first = await owner.get(f"{SELLING}/list")
            assert "qwen3:8b" in first.text
            assert "its tokenizer.json is unknown" in first.text
            checked = await owner.get(f"{SELLING}/list/check", **GIVEN)
            assert "Not ready to list" in checked.text
            assert "mr-old" not in checked.text
            assert "$0.1900" not in checked.text
            assert "$0.19" in checked.text, "the seller's share of 0.20 with the usual fee"
            assert file.read_text() == mine, "looking writes nothing"
            done = await owner.post(f"{SELLING}/list/write", **GIVEN, marketplace_key="mr-new")
            assert (done.status_code, done.headers["location"]) == (303, f"{SELLING}/started"), done.text
            started = await owner.get(f"{SELLING}/started")
            assert f"millrace sell --data-dir {folder}" in started.text
            assert "mr-new" not in started.text
        written = file.read_text()
        assert written.startswith("# my own words\n[costs]\nwatts = 90 # measured\n")
        assert (file.stat().st_mode & 0o777) == 0o600
        section = tomllib.loads(written)["selling"]
        assert section["region"] == "north", "what the wizard does not ask for stays"
        settings = SellingSettings.model_validate(section)
        assert [model.model for model in settings.models] == ["other", "qwen3:8b"]
        sold = settings.models[1]
        assert (sold.prompt_usd_per_mtok, sold.completion_usd_per_mtok, sold.slots_max) == (
            USD // 20,
            USD // 5,
            2,
        )
        assert (settings.queue_empty_minutes, settings.on_battery, settings.tunnel) == (10, False, "none")
        assert settings.hours[0].days == (5, 6)
        assert settings.marketplace_key is not None
        assert settings.marketplace_key.get_secret_value() == "mr-new"
        entries = served.services.directory.audit.entries(Filter(action="selling.list"))
        assert [entry.target for entry in entries] == ["model:qwen3:8b"]
        async with visiting(served) as owner:
            again = await owner.get(f"{SELLING}/list/price", model="qwen3:8b", minutes="10")
            assert 'value="0.20"' in again.text, "what is sold already is filled in"
            gone = await owner.post(f"{SELLING}/list/unlist", model="other")
            assert gone.status_code == 303
        assert [one["model"] for one in tomllib.loads(file.read_text())["selling"]["models"]] == ["qwen3:8b"]


async def test_a_model_that_is_in_the_settings_can_be_chosen_again(served: Served) -> None:
    named = '[selling]\n[[selling.models]]\nmodel = "qwen3:8b"\ntokenizer = "/m/tokenizer.json"\n'
    named += f'weights_sha256 = "{"a" * 64}"\nprompt_usd_per_mtok = "1.00"\ncompletion_usd_per_mtok = "2.00"\n'
    server = servers.ollama()
    async with servers.running(server), visiting(served) as owner:
        await owner.post("/console/models/servers", name="named", base_url=server.base_url, kind="ollama")
        for text, is_open in (("", False), (named, True)):
            with settings_file(served, text):
                page = await owner.get(f"{SELLING}/list")
                choice = re.search(r'<input[^>]* value="qwen3:8b"[^>]*>', page.text)
                assert choice
                assert ("disabled" not in choice[0]) == is_open


async def test_a_wrong_answer_is_said_at_its_step_and_nothing_typed_is_lost(served: Served) -> None:
    async with visiting(served) as owner:
        for wrong, field, step in (
            ({"model": ""}, "model", "Model"),
            ({"minutes": "9999"}, "minutes", "Idle conditions"),
            ({"begins": "25:00"}, "begins", "Idle conditions"),
            ({"prompt": "0,05"}, "prompt", "Price"),
            ({"completion": "-1"}, "completion", "Price"),
            ({"country_code": "Germany"}, "country_code", "Connection and marketplace"),
            ({"marketplace_url": "market.example/path"}, "marketplace_url", "Connection and marketplace"),
            ({"tunnel": "named"}, "tunnel", "Connection and marketplace"),
        ):
            for answer in (
                await owner.get(f"{SELLING}/list/check", **GIVEN | wrong),
                await owner.post(f"{SELLING}/list/write", **GIVEN | wrong),
            ):
                assert answer.status_code == 400, wrong
                assert f"<h2>{step}" in answer.text, wrong
                if field != "model":
                    assert re.search(f'name="{field}"[^>]* aria-invalid="true"', answer.text), wrong
                if step != "Model":
                    assert 'name="model" value="qwen3:8b"' in answer.text
        assert (await owner.get(f"{SELLING}/list/nowhere")).status_code == 404
        assert (await owner.post(f"{SELLING}/list/write", csrf="no", **GIVEN)).status_code == 403
        with settings_file(served) as file:
            assert not file.exists()
        with settings_file(served, "[selling\n"):
            broken = await owner.get(f"{SELLING}/list")
            assert (broken.status_code, "millrace.toml" in broken.text) == (400, True)
            assert "The agent would not start" in (await owner.get(SELLING)).text


def test_a_section_that_cannot_be_told_from_the_rest_is_not_written() -> None:
    section = {"tunnel": "none", "refuses": {"weapons": ['pipe "bomb"']}, "models": [{"model": "ü", "id": "a/b"}]}
    text = with_section("[log]\nlevel='info'", section)
    assert tomllib.loads(text) == {"log": {"level": "info"}, "selling": section}
    assert with_section(text, section) == text, "written again it is the same"
    assert "mr-" not in as_toml({"marketplace_key": "mr-1", "marketplace-key": "mr-2"}, is_masked=True), (
        "nor one misspelt"
    )
    for awkward in ("selling = { tunnel = 'quick' }\n", 'selling.tunnel = "quick"\n'):
        with pytest.raises(Conflict, match="Copy the section shown here into the file yourself"):
            with_section(awkward, section)


def test_what_the_owner_wrote_around_the_section_stays_where_it_was() -> None:
    before = "# Selling:\n[selling]\nport = 1 # ours\n[[selling.models]]\nmodel = 'm'\n\n# what power costs\n"
    text = with_section(before + "[costs]\nwatts = 90\n", {"port": 2})
    assert text == "# Selling:\n[selling]\nport = 2\n\n# what power costs\n[costs]\nwatts = 90\n"
    assert with_section("[selling]\nport = 1\n# the end\n", {"port": 2}) == "[selling]\nport = 2\n\n# the end\n"


def test_two_admins_do_not_write_over_one_another(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    owned = tmp_path / "etc" / "mine.toml"
    owned.write_text("[log]\nlevel = 'info'\n")
    (tmp_path / "millrace.toml").symlink_to(owned)
    file = SettingsFile.of(tmp_path)
    file.put({"country_code": "DE", "region": "Köln"}, before={})
    with pytest.raises(Conflict, match="was changed meanwhile"):
        file.put({"country_code": "FR"}, before={})
    assert file.section() == {"country_code": "DE", "region": "Köln"}
    assert file.path.is_symlink(), "the owner's link leads where it led"
    assert tomllib.loads(owned.read_bytes().decode())["log"] == {"level": "info"}
    assert (owned.stat().st_mode & 0o777, len(list(owned.parent.iterdir()))) == (0o600, 1)


async def test_a_file_that_is_odd_or_cannot_be_replaced_is_no_mistake_of_ours(served: Served) -> None:
    async with visiting(served) as owner:
        for odd in (
            "selling = 5\n",
            "selling = { hours = 5, models = 5 }\n",
            "selling = {hours = [{days = 5}]}\n",
        ):
            with settings_file(served, odd) as file:
                for step in ("", "/when?model=m", "/price?model=m&minutes=1"):
                    assert (await owner.get(f"{SELLING}/list{step}")).status_code == 200, (odd, step)
                refused = await owner.post(f"{SELLING}/list/write", **GIVEN)
                assert (
                    refused.status_code,
                    "Copy the section shown here into the file yourself" in refused.text,
                ) == (409, True)
                assert 'name="model" value="qwen3:8b"' in refused.text
                assert file.read_text() == odd
        with settings_file(served, "[log]\nlevel = 'info'\n") as file:
            assert (await owner.post(f"{SELLING}/list/unlist", model="none")).status_code == 404
            assert "selling" not in file.read_text()


async def test_nothing_is_saved_that_the_audit_log_does_not_have(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise Overloaded("The audit log is full.")

    named = '[selling]\n[[selling.models]]\nmodel = "other"\n'
    named += "prompt_usd_per_mtok = '1.00'\ncompletion_usd_per_mtok = '2.00'\n"
    async with visiting(served) as owner:
        monkeypatch.setattr(AuditLog, "add", full)
        with settings_file(served, named) as file:
            refused = await owner.post(f"{SELLING}/list/write", **GIVEN)
            assert (refused.status_code, "The audit log is full." in refused.text) == (409, True)
            assert (await owner.post(f"{SELLING}/list/unlist", model="other")).status_code == 503
            assert file.read_text() == named


async def test_the_key_of_one_marketplace_is_never_sent_to_another(served: Served) -> None:
    text = '[selling]\nmarketplace_url = "https://old.example"\nmarketplace_key = "mr-old"\n'
    async with visiting(served) as owner:
        for url, key in (("https://old.example", "mr-old"), ("https://new.example", None)):
            with settings_file(served, text) as file:
                done = await owner.post(f"{SELLING}/list/write", **GIVEN | {"marketplace_url": url})
                assert done.status_code == 303, done.text
                assert tomllib.loads(file.read_text())["selling"].get("marketplace_key") == key


def test_a_price_is_suggested_below_the_cloud_and_above_the_power() -> None:
    cloud = [Price(USD, USD, 4 * USD), Price(USD // 2, 0, 2 * USD)]
    cheap = suggested(cloud, USD // 100, 500)
    assert cheap
    assert (cheap.prompt_nano, cheap.completion_nano) == (USD * 3 // 10, USD * 12 // 10)
    dear = suggested(cloud, 2 * USD, 500)
    assert dear
    mix = (3 * dear.prompt_nano + dear.completion_nano) // 4
    assert share_nano(mix, 500) >= 2 * USD - 1
    assert suggested([], None, 500) is None
    assert suggested([Price(0, 0, 0), *cloud], None, 500) == suggested(cloud, None, 500), "given away is no price"
    alone = suggested([], USD, 500)
    assert alone
    assert (3 * alone.prompt_nano + alone.completion_nano) // 4 >= 2 * USD
