"""Whatever OpenAI's own description allows, and what it forbids: never our fault, and always said in its shape."""

import json
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis import GenerationMode
from schemathesis.config import SchemathesisConfig

from tests.gateway.hostile.range import Range

REQUESTS = Path(__file__).parents[2] / "fixtures" / "openai" / "requests.json"
Case: TypeAlias = schemathesis.Case[Any]
_AT_EASE = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.filter_too_much]

config = SchemathesisConfig()
project = config.projects.get_default()
project.generation.update(modes=[GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
# Of the ways in which cases are made, the random one alone: the others make thousands of them.
project.phases.examples.enabled = project.phases.coverage.enabled = False
schema = schemathesis.openapi.from_dict(json.loads(REQUESTS.read_text()), config=config)


def check(case: Case, target: Range) -> None:
    if isinstance(case.body, dict) and case.path != "/v1/models":
        case.body["model"] = "m"  # else nearly all would end with a model that nobody has
    headers = {"Authorization": f"Bearer {target.gateway.api_key}"}
    answer = case.call(base_url=target.gateway.root, headers=headers, timeout=10)
    assert answer.status_code < 500, (case.method, case.path, case.body, answer.text)
    if answer.status_code >= 400:
        error = answer.json()["error"]
        assert error["message"]
        assert error["type"]


@schema.exclude(path="/v1/responses").parametrize()
@settings(max_examples=4, suppress_health_check=_AT_EASE)
def test_every_request_is_answered_or_refused(case: Case, target: Range) -> None:
    check(case, target)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@schema.parametrize()
@settings(max_examples=400, suppress_health_check=_AT_EASE)
def test_every_request_is_answered_or_refused_at_length(case: Case, target: Range) -> None:
    check(case, target)


def test_all_is_well_after_that(target: Range) -> None:
    target.assert_well()
