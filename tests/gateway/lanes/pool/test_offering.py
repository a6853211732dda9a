"""Names that callers use and names that backends use."""

from gateway.lanes.pool.loads import LoadTimes
from gateway.lanes.pool.offers import Offering, Standing, offering
from gateway.lanes.pool.report import BackendReport, ModelReport
from gateway.settings.pool import PoolBackend

REPORT = BackendReport((ModelReport("qwen3:8b"), ModelReport("llama3.2:latest", aliases=("llama3.2",))), slots=4)


def offered(aliases: dict[str, tuple[str, ...]] | None = None, **given: object) -> Offering:
    backend = PoolBackend.model_validate({"name": "desk", "base_url": "http://10.0.0.2:11434", **given})
    return offering(backend, REPORT, Standing("ready"), aliases or {}, LoadTimes())


def test_an_alias_stands_for_the_first_of_its_list_that_is_there() -> None:
    found = offered({"gpt-4o-mini": ("absent", "llama3.2", "qwen3:8b"), "nobody": ("absent",)})
    assert found.offers["gpt-4o-mini"].served_as == "llama3.2:latest"
    assert found.offers["llama3.2"].served_as == "llama3.2:latest"
    assert found.offers["qwen3:8b"].served_as is None
    assert "nobody" not in found.offers


def test_an_alias_knows_by_which_names_its_model_may_be_asked_for() -> None:
    offers = offered({"gpt-4o-mini": ("llama3.2",), "gpt-4o": ("qwen3:8b",)}).offers
    assert {name: offers[name].stands_for for name in sorted(offers)} == {
        "gpt-4o": ("qwen3:8b",),
        "gpt-4o-mini": ("llama3.2", "llama3.2:latest"),
        "llama3.2": ("llama3.2:latest",),
        "llama3.2:latest": (),
        "qwen3:8b": (),
    }
    # Callers know nothing of the backend's own name here.
    assert offered({"tiny": ("small",)}, models={"small": "qwen3:8b"}).offers["tiny"].stands_for == ("small",)


def test_an_alias_hides_no_model_of_its_name_and_says_so() -> None:
    found = offered({"qwen3:8b": ("llama3.2",)})
    assert found.offers["qwen3:8b"].served_as is None
    assert "alias qwen3:8b is not used" in found.warnings[0]


def test_a_backend_may_give_its_models_other_names() -> None:
    found = offered(models={"small": "qwen3:8b", "gone": "absent"}, slots=2, region="cellar", weight=3)
    assert set(found.offers) == {"small", "gone"}
    small = found.offers["small"]
    assert (small.served_as, small.slots, small.region, small.weight) == ("qwen3:8b", 2, "cellar", 3)
    assert "absent" in found.warnings[0]


def test_clearance_follows_the_address_unless_it_is_set() -> None:
    addresses = {
        "http://127.0.0.1:1": "private",
        "http://192.168.1.4:1": "private",
        "http://100.64.0.9:1": "private",
        "http://[fd00::1]:1": "private",
        "http://desk.local:1": "private",
        "http://desk:1": "private",
        "http://8.8.8.8:1": "public",
        "https://api.example.com/v1": "public",
    }
    for address, clearance in addresses.items():
        assert offered(base_url=address).offers["qwen3:8b"].clearance == clearance, address
    assert offered(base_url="http://8.8.8.8", clearance="internal").offers["qwen3:8b"].clearance == "internal"
