"""Whatever OpenAI's own description allows, and what it forbids: never our fault, and always said in its shape."""

import json
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.gateway.hostile.range import Range

if TYPE_CHECKING:
    import schemathesis

DESCRIBED = json.loads((Path(__file__).parents[2] / "fixtures" / "openai" / "requests.json").read_text())
OPERATIONS = [
    pytest.param(path, method, id=f"{method.upper()} {path}")
    for path, methods in DESCRIBED["paths"].items()
    for method in methods
]
_AT_EASE = [HealthCheck.too_slow, HealthCheck.filter_too_much]


@cache
def schema() -> "schemathesis.BaseSchema":
    """Read by the one process that tries it: its own plugin for pytest makes thousands of cases in every one."""
    import schemathesis

    return schemathesis.openapi.from_dict(DESCRIBED)


def cases(path: str, method: str) -> st.SearchStrategy[Any]:
    """What the description allows, and what it forbids."""
    from schemathesis import GenerationMode

    operation = schema()[path][method]
    return st.one_of(*(operation.as_strategy(generation_mode=mode) for mode in GenerationMode))


def check(case: Any, target: Range) -> None:
    if isinstance(case.body, dict) and case.path != "/v1/models":
        case.body["model"] = "m"  # else nearly all would end with a model that nobody has
    headers = {"Authorization": f"Bearer {target.gateway.api_key}"}
    answer = case.call(base_url=target.gateway.root, headers=headers, timeout=60)
    assert answer.status_code < 500, (case.method, case.path, case.body, answer.text)
    if answer.status_code >= 400:
        error = answer.json()["error"]
        assert error["message"]
        assert error["type"]


def try_all(path: str, method: str, target: Range, examples: int) -> None:
    @settings(max_examples=examples, suppress_health_check=_AT_EASE)
    @given(case=cases(path, method))
    def each(case: Any) -> None:
        check(case, target)

    each()


# It describes the largest requests of all, whose cases take longest to make.
@pytest.mark.parametrize(("path", "method"), [each for each in OPERATIONS if "/v1/responses" not in each.values])
def test_every_request_is_answered_or_refused(path: str, method: str, target: Range) -> None:
    try_all(path, method, target, 4)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("path", "method"), OPERATIONS)
def test_every_request_is_answered_or_refused_at_length(path: str, method: str, target: Range) -> None:
    try_all(path, method, target, 400)


def test_all_is_well_after_that(target: Range) -> None:
    target.assert_well()
