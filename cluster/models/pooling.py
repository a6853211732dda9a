"""How an embedding model's rows become one vector, from its sentence-transformers files."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from cluster.errors import ModelInvalid, ModelUnsupported

Pooling = Literal["cls", "mean", "last"]

_FLAG = "pooling_mode_"
_MODES: dict[str, Pooling] = {
    "cls": "cls",
    "mean": "mean",
    "lasttoken": "last",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_lasttoken": "last",
}


@dataclass(frozen=True, slots=True)
class Recipe:
    """The way from rows to a vector. `tokens_max` 0 means the model's whole context."""

    pooling: Pooling
    normalize: bool
    tokens_max: int = 0


def read_recipe(folder: Path, default: Pooling | None) -> Recipe:
    """Return what modules.json and its folders ask for; `default` if there is none.

    Raise ModelUnsupported for other modules or poolings, or if nothing says how to pool.
    """
    modules = _read(folder / "modules.json")
    if modules is None:
        if default is None:
            raise ModelUnsupported(
                f"{folder} has no modules.json that says how to pool. It is not an embedding model."
            )
        return Recipe(default, normalize=False)
    pooling, normalize = default, False
    for module in modules:
        match str(module.get("type", "")).rpartition(".")[2]:
            case "Transformer":
                pass
            case "Pooling":
                pooling = _read_pooling(_read(folder / str(module.get("path")) / "config.json") or {})
            case "Normalize":
                normalize = True
            case other:
                raise ModelUnsupported(f"modules.json: a module of type {other!r} is not supported")
    if pooling is None:
        raise ModelUnsupported(f"{folder / 'modules.json'} names no pooling")
    limit = (_read(folder / "sentence_bert_config.json") or {}).get("max_seq_length")
    return Recipe(pooling, normalize, limit if isinstance(limit, int) and limit > 1 else 0)


def _read_pooling(config: dict[str, Any]) -> Pooling:
    """Read the pooling from flags, as in older files, or from `pooling_mode`, as in newer ones."""
    chosen = [name for name, on in config.items() if name.startswith(_FLAG) and on is True]
    if isinstance(mode := config.get("pooling_mode"), str):
        chosen = [mode]
    if len(chosen) == 1 and chosen[0] in _MODES:
        return _MODES[chosen[0]]
    supported = ", ".join(_MODES)
    raise ModelUnsupported(
        f"pooling {' + '.join(chosen) or 'of no kind'} is not supported, only one of {supported}"
    )


def _read(path: Path) -> Any:
    if not path.is_file():
        return None
    try:
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ModelInvalid(f"{path}: {error}") from None
