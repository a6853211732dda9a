"""Every kind of backend: its display name, its usual port, and its reader."""

from collections.abc import Callable
from dataclasses import dataclass

from gateway.lanes.pool.kinds.base import Reader
from gateway.lanes.pool.kinds.engines import SglangReader, VllmReader
from gateway.lanes.pool.kinds.listed import ListReader, distributed_llama, mlx_lm
from gateway.lanes.pool.kinds.llama_server import LlamaServerReader
from gateway.lanes.pool.kinds.lm_studio import LmStudioReader
from gateway.lanes.pool.kinds.loaded_only import ExoReader, TabbyReader
from gateway.lanes.pool.kinds.millrace import MillraceReader
from gateway.lanes.pool.kinds.ollama import OllamaReader
from gateway.settings.pool import BackendKind


@dataclass(frozen=True, slots=True)
class KindFacts:
    """`hears_nothing`: it answers no probe while it works on a request."""

    title: str
    port: int
    reader: Callable[[], Reader]
    hears_nothing: bool = False


KINDS_OF_BACKEND: dict[BackendKind, KindFacts] = {
    "ollama": KindFacts("Ollama", 11434, OllamaReader),
    "llama-server": KindFacts("llama-server", 8080, LlamaServerReader),
    "vllm": KindFacts("vLLM", 8000, VllmReader),
    "sglang": KindFacts("SGLang", 30000, SglangReader),
    "lm-studio": KindFacts("LM Studio", 1234, LmStudioReader),
    "tabby": KindFacts("TabbyAPI", 5000, TabbyReader),
    "mlx-lm": KindFacts("mlx-lm", 8080, mlx_lm, hears_nothing=True),
    "exo": KindFacts("exo", 52415, ExoReader),
    "dllama": KindFacts("distributed-llama", 9990, distributed_llama, hears_nothing=True),
    "gpustack": KindFacts("GPUStack", 80, ListReader),
    "millrace": KindFacts("Millrace", 8400, MillraceReader),
    "openai": KindFacts("an OpenAI-compatible server", 8000, ListReader),
}

PORTS: tuple[int, ...] = tuple(dict.fromkeys(facts.port for facts in KINDS_OF_BACKEND.values()))
