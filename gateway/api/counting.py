"""How long a prompt is: exactly where the model's tokenizer is ours, by the books' estimate elsewhere."""

import orjson

from cluster.errors import GenerationError, ModelError
from gateway.dialects.base import Question
from gateway.lanes.tokens import estimate_prompt
from gateway.services import Services


async def prompt_tokens(services: Services, question: Question) -> int:
    """Tokens of a chat's prompt, with the tools that are described in it."""
    controller = services.controller
    if controller.model_name == question.request.model:
        body = orjson.loads(question.raw)
        try:
            return await controller.count_tokens(body["messages"], body.get("tools") or [])
        except (GenerationError, ModelError):
            pass  # Pictures, or roles that the template does not know: nobody can say exactly.
    return estimate_prompt(question.request)
