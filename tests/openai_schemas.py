"""OpenAI's own description of its API, as what answers are held against."""

import json
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT202012

SCHEMAS = Path(__file__).parent / "fixtures" / "openai" / "schemas.json"


def check(schema: str, answer: Any) -> None:
    """The answer is what the schema says."""
    document = _with_nulls(json.loads(SCHEMAS.read_text()))
    registry: Any = Registry().with_resource("urn:openai", Resource.from_contents(document, DRAFT202012))
    validator = Draft202012Validator({"$ref": f"urn:openai#/components/schemas/{schema}"}, registry=registry)
    errors = [f"{error.json_path}: {error.message}" for error in validator.iter_errors(answer)]
    assert not errors, errors


def _with_nulls(schema: Any) -> Any:
    """The document says `nullable`, which JSON Schema does not know."""
    if isinstance(schema, list):
        return [_with_nulls(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    inner = {name: _with_nulls(part) for name, part in schema.items() if name != "nullable"}
    return {"anyOf": [inner, {"type": "null"}]} if schema.get("nullable") is True else inner
