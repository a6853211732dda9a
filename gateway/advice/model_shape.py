"""Read a model's shape without its weights: its config.json, from this machine or from Hugging Face."""

import json
from pathlib import Path
from typing import Any

from cluster.errors import ModelInvalid, ModelNotFound
from cluster.models.manifest import read_config
from cluster.models.model_card import ModelCard, read_card
from cluster.models.store import find_model, is_hub_reachable, model_name

_CONFIG_BYTES_MAX = 2**20
# Sizes are added up and plans made layer by layer, so bound the time a config.json can cost.
_LAYERS_MAX = 2000
_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")


def read_shape(reference: str, cache: Path) -> tuple[str, ModelCard]:
    """Return the model's name for callers, and its card. For a Hugging Face id, only config.json is fetched.

    `cache` is the folder of pulled models. Blocks while it reads.

    Raises ModelNotFound, ModelInvalid, ModelUnsupported.
    """
    if "\0" in reference:
        raise ModelNotFound("a model's name must not contain a NUL character")
    here = Path(reference).expanduser()
    if here.exists():
        return model_name(reference), _card(read_config(find_model(reference, cache)))
    repository, _, revision = reference.partition("@")
    if repository.count("/") != 1 or repository.startswith((".", "/", "~")):
        raise ModelNotFound(f"{reference} is neither a folder nor a Hugging Face ID like owner/name")
    return model_name(reference), _card(_config(repository, revision or "main", cache))


def _card(config: dict[str, Any]) -> ModelCard:
    parts = (config, *(part for part in config.values() if isinstance(part, dict)))
    layer_counts = (part.get(name) for part in parts for name in _LAYERS)
    if any(isinstance(layers, int) and layers > _LAYERS_MAX for layers in layer_counts):
        raise ModelInvalid(f"config.json has more than {_LAYERS_MAX} layers")
    return read_card(config)


def _config(repository: str, revision: str, cache: Path) -> dict[str, Any]:
    # The library takes long to import, and most advice is about local models.
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        try:
            path = Path(
                hf_hub_download(
                    repository, "config.json", revision=revision, cache_dir=cache, local_files_only=True
                )
            )
        except LocalEntryNotFoundError:
            if not is_hub_reachable():
                raise
            path = Path(hf_hub_download(repository, "config.json", revision=revision, cache_dir=cache))
        if path.stat().st_size > _CONFIG_BYTES_MAX:
            raise ModelInvalid(f"{repository}: its config.json is longer than {_CONFIG_BYTES_MAX} bytes")
        config = json.loads(path.read_bytes())
    except LocalEntryNotFoundError:
        raise ModelNotFound(f"{repository} is not on this machine and Hugging Face cannot be reached") from None
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        raise ModelNotFound(f"{repository}@{revision} cannot be read: {error}") from None
    except ValueError as error:
        raise ModelInvalid(f"{repository}: its config.json cannot be read: {error}") from None
    if not isinstance(config, dict):
        raise ModelInvalid(f"{repository}: its config.json must hold an object")
    return config
