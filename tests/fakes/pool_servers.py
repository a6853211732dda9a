"""Servers of whole models as the pool's probes see them, for those that cannot run here: fixed answers by path.

The answers have the fields and types that the servers' own sources and documentation show, for a few models.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

Json = Any


@dataclass
class FakeServer:
    """Answers each path with its value: bytes as they are, an int as a status, a response, else JSON.

    `asked` counts requests by path. Paths that are not there are 404; so is a value of None.
    """

    answers: dict[str, Json]
    server: str = ""
    asked: dict[str, int] = field(default_factory=dict)
    hangs: bool = False
    port: int = 0

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.asked[request.path] = self.asked.get(request.path, 0) + 1
        if self.hangs:
            await asyncio.Event().wait()
        found = self.answers.get(request.path)
        if callable(found):
            found = found(await request.json() if request.can_read_body else None)
        response: web.Response
        if isinstance(found, web.Response):
            response = found
        elif isinstance(found, bytes):
            response = web.Response(body=found, content_type="text/plain")
        elif found is None or isinstance(found, int):
            response = web.json_response({"error": "no"}, status=found or 404)
        else:
            response = web.json_response(found)
        response.headers["Server"] = self.server
        return response


@asynccontextmanager
async def running(server: FakeServer) -> AsyncIterator[FakeServer]:
    """Serve on this event loop; at the end, open requests are cut off."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", server.answer)
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", server.port)
    await site.start()
    server.port = runner.addresses[0][1]
    try:
        yield server
    finally:
        await runner.cleanup()


def listed(*names: str, owner: str, **more: Json) -> Json:
    entries = [{"id": name, "object": "model", "created": 1, "owned_by": owner, **more} for name in names]
    return {"object": "list", "data": entries}


def _ollama_tag(name: str, **more: Json) -> Json:
    details = {"format": "gguf", "family": "qwen3", "parameter_size": "8B", "quantization_level": "Q4_K_M"}
    return {"name": name, "model": name, "size": 5_000_000_000, "digest": f"d-{name}", "details": details, **more}


def _ollama_show(body: Json) -> Json:
    shown: dict[str, Json] = {
        "qwen3:8b": {
            "capabilities": ["completion", "tools", "thinking"],
            "model_info": {"general.architecture": "qwen3", "qwen3.context_length": 40960},
            "parameters": 'num_ctx                        16384\nstop "<|im_end|>"',
        },
        "llava:latest": {"capabilities": ["completion", "vision"], "model_info": {"llama.context_length": 4096}},
        "nomic-embed-text:latest": {
            "capabilities": ["embedding"],
            "model_info": {"nomic-bert.context_length": 2048},
        },
        "gpt-oss:120b-cloud": {"capabilities": ["completion", "tools"], "model_info": {}},
    }
    return shown.get(body["model"], 404)


def ollama() -> FakeServer:
    tags = [
        _ollama_tag("qwen3:8b"),
        _ollama_tag("llava:latest"),
        _ollama_tag("nomic-embed-text:latest"),
        _ollama_tag("gpt-oss:120b-cloud", remote_model="gpt-oss:120b", remote_host="https://ollama.com:443"),
    ]
    loaded = {"name": "llava:latest", "model": "llava:latest", "size_vram": 5_000_000_000, "context_length": 2048}
    return FakeServer(
        {
            "/v1/models": listed("qwen3:8b", owner="library"),
            "/api/version": {"version": "0.12.6"},
            "/api/tags": {"models": tags},
            "/api/ps": {"models": [loaded]},
            "/api/show": _ollama_show,
        }
    )


def vllm() -> FakeServer:
    metrics = b"""# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="Qwen/Qwen3-8B"} 3.0
vllm:num_requests_running{engine="1",model_name="Qwen/Qwen3-8B"} 2.0
vllm:num_requests_waiting{engine="0",model_name="Qwen/Qwen3-8B"} 7.0
vllm:kv_cache_usage_perc{engine="0",model_name="Qwen/Qwen3-8B"} 0.25
"""
    models = listed("Qwen/Qwen3-8B", owner="vllm", root="Qwen/Qwen3-8B", parent=None, max_model_len=40960)
    return FakeServer({"/v1/models": models, "/version": {"version": "0.11.0"}, "/metrics": metrics}, "uvicorn")


def sglang() -> FakeServer:
    metrics = b"""sglang:num_running_reqs{model_name="m",tp_rank="0"} 4.0
sglang:num_queue_reqs{model_name="m",tp_rank="0"} 1.0
sglang:token_usage{model_name="m",tp_rank="0"} 0.5
"""
    return FakeServer(
        {
            "/v1/models": listed("m", owner="sglang", root="m", max_model_len=32768),
            "/get_model_info": {"model_path": "m", "is_generation": True, "has_image_understanding": False},
            "/get_server_info": {"model_path": "m", "max_running_requests": 48, "version": "0.5.3"},
            "/metrics": metrics,
        },
        "uvicorn",
    )


def llama_server(*flags: str, is_sleeping: bool | None = None) -> FakeServer:
    """One model `m`. What it was not started for it answers with 501, before it reads the request."""

    def refusing(status: int, message: str) -> Callable[[Json], web.Response]:
        return lambda _: web.json_response({"error": {"code": status, "message": message}}, status=status)

    embeds, reranks = "--embeddings" in flags or "--reranking" in flags, "--reranking" in flags
    missing = refusing(400, '"input" must be provided')
    return FakeServer(
        {
            "/v1/models": listed("m", owner="llamacpp", meta={"n_ctx": 4096}),
            "/props": {"total_slots": 1, "is_sleeping": is_sleeping},
            "/v1/completions": refusing(501, "This server does not support completions.") if embeds else missing,
            "/v1/embeddings": missing if embeds else refusing(501, "This server does not support embeddings."),
            "/v1/rerank": missing if reranks else refusing(501, "This server does not support reranking."),
        },
        "llama.cpp",
    )


def llama_router() -> FakeServer:
    def entry(name: str, **status: Json) -> Json:
        modalities = {"input_modalities": ["text", "image"], "output_modalities": ["text"]}
        return {
            "id": name, "object": "model", "owned_by": "llamacpp", "created": 1, "status": status,
            "architecture": modalities,
        }  # fmt: skip

    models = {
        "object": "list",
        "data": [
            entry("a", value="loaded", args=["llama-server"])
            | {"meta": {"n_ctx": 8192, "ftype": "Q8_0", "size": 9}},
            entry("b", value="unloaded", args=["llama-server", "--reranking"]),
            entry("c", value="unloaded", failed=True, exit_code=1),
        ],
    }
    return FakeServer({"/v1/models": models, "/props": {"role": "router"}}, "llama.cpp")


def lm_studio() -> FakeServer:
    models: Json = [
        {
            "id": "qwen2-vl-7b-instruct", "object": "model", "type": "vlm", "arch": "qwen2_vl",
            "quantization": "4bit", "state": "not-loaded", "max_context_length": 32768,
        },
        {
            "id": "openai/gpt-oss-20b", "object": "model", "type": "llm", "quantization": "MXFP4",
            "state": "loaded", "max_context_length": 131072, "loaded_context_length": 8192,
            "capabilities": ["tool_use"],
        },
        {
            "id": "text-embedding-nomic-embed-text-v1.5", "object": "model", "type": "embeddings",
            "quantization": "Q4_0", "state": "not-loaded", "max_context_length": 2048,
        },
    ]  # fmt: skip
    names = [model["id"] for model in models]
    return FakeServer(
        {
            "/v1/models": listed(*names, owner="organization_owner"),
            "/api/v0/models": {"object": "list", "data": models},
        }
    )


def lm_studio_v1() -> FakeServer:
    """0.4 with the older listing taken away."""
    instance = {"id": "qwen/qwen3.5-9b", "config": {"context_length": 4096, "flash_attention": True}}
    models = [
        {
            "type": "llm", "key": "qwen/qwen3.5-9b", "quantization": {"name": "Q4_K_M", "bits_per_weight": 4},
            "size_bytes": 6_548_927_017, "loaded_instances": [instance], "max_context_length": 262144,
            "capabilities": {"vision": True, "trained_for_tool_use": True},
        },
        {
            "type": "embedding", "key": "nomic", "quantization": None, "size_bytes": 84_106_624,
            "loaded_instances": [], "max_context_length": 2048,
        },
    ]  # fmt: skip
    return FakeServer(
        {"/v1/models": listed("nomic", owner="organization_owner"), "/api/v1/models": {"models": models}}
    )


def tabby() -> FakeServer:
    parameters = {"max_seq_len": 16384, "max_batch_size": 4, "use_vision": False, "cache_mode": "Q8"}
    card = {"id": "exl3-model", "object": "model", "created": 1, "owned_by": "tabbyAPI", "parameters": parameters}
    return FakeServer(
        {"/v1/models": listed("exl3-model", "another-folder", owner="tabbyAPI"), "/v1/model": card}, "uvicorn"
    )


def exo() -> FakeServer:
    models = listed("mlx-community/a", "mlx-community/b", owner="exo", context_length=8192, quantization="4bit")
    return FakeServer({"/v1/models": models, "/ollama/api/ps": {"models": [{"model": "mlx-community/a"}]}})


def mlx_lm() -> FakeServer:
    entry = {"id": "mlx-community/Qwen3-4B-4bit", "object": "model", "created": 1}
    return FakeServer({"/v1/models": {"object": "list", "data": [entry]}}, "BaseHTTP/0.6 Python/3.12.4")


def distributed_llama() -> FakeServer:
    entry = {"id": "dl", "object": "model", "created": 0, "owned_by": "user"}
    return FakeServer({"/v1/models": {"object": "list", "data": [entry]}})


def gpustack() -> FakeServer:
    return FakeServer({"/v1/models": listed("qwen3", owner="gpustack", meta=None)}, "uvicorn")


def plain() -> FakeServer:
    return FakeServer({"/v1/models": listed("m", owner="somebody")})


def another_millrace() -> FakeServer:
    own = {"lanes": ["cluster"], "can": ["chat"], "features": ["tools"], "is_loaded": False, "weights": "abc/bf16"}
    models = listed("own", owner="millrace", millrace=own)
    models["data"] += listed("bought", owner="millrace", millrace={"lanes": ["cloud"]})["data"]
    return FakeServer({"/v1/models": models})


EVERY: dict[str, Callable[[], FakeServer]] = {
    "ollama": ollama,
    "vllm": vllm,
    "sglang": sglang,
    "llama-server": llama_router,
    "lm-studio": lm_studio,
    "tabby": tabby,
    "exo": exo,
    "mlx-lm": mlx_lm,
    "dllama": distributed_llama,
    "gpustack": gpustack,
    "millrace": another_millrace,
    "openai": plain,
}
