"""The message to send: the fields of the page's form, and the chat completion that they become."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, field_validator

from gateway.dialects.openai import TOKENS_MAX
from gateway.settings.base import LaneName

PATH = "/console/playground"
CONVERSATION_CHARS_MAX = 100_000
"""Limit of the conversation so far; and of the prompt."""
TURNS_MAX = 200
"""Limit of earlier messages."""
SYSTEM_CHARS_MAX = 20_000
FORM_BYTES_MAX = 3 * 2**20
"""Each character of the longest conversation may take up to a dozen bytes of a form."""


class Said(BaseModel):
    """One message of the conversation so far."""

    model_config = ConfigDict(extra="forbid")

    role: Literal["user", "assistant"]
    content: Annotated[str, Field(max_length=CONVERSATION_CHARS_MAX)]


_conversations = TypeAdapter(Annotated[list[Said], Field(max_length=TURNS_MAX)])


class Question(BaseModel):
    """One message; `history` is the conversation so far, as JSON. Without a lane the router chooses one."""

    model: Annotated[str, Field(max_length=256, pattern=r"^[^\x00-\x1f\x7f]+$")]
    lane: LaneName | None = None
    system: Annotated[str, Field(max_length=SYSTEM_CHARS_MAX)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)] | None = None
    max_tokens: Annotated[int, Field(ge=1, le=TOKENS_MAX)] | None = None
    prompt: Annotated[str, Field(max_length=CONVERSATION_CHARS_MAX)]
    history: str = "[]"

    @field_validator("history")
    @classmethod
    def _is_a_conversation(cls, text: str) -> str:
        try:
            before = _conversations.validate_json(text)
        except ValidationError:
            raise ValueError(
                f"The conversation is invalid or longer than {TURNS_MAX} messages. Start a new one."
            ) from None
        if sum(len(turn.content) for turn in before) > CONVERSATION_CHARS_MAX:
            raise ValueError(
                f"The conversation is longer than {CONVERSATION_CHARS_MAX:,} characters. Start a new one."
            )
        return text

    def as_request(self) -> dict[str, Any]:
        """Return the body of POST /v1/chat/completions, without the fields left empty."""
        system = [{"role": "system", "content": self.system}] if self.system else []
        before = [turn.model_dump() for turn in _conversations.validate_json(self.history)]
        request: dict[str, Any] = {
            "model": self.model,
            "messages": [*system, *before, {"role": "user", "content": self.prompt}],
        }
        for name in ("temperature", "max_tokens"):
            if (value := getattr(self, name)) is not None:
                request[name] = value
        if self.lane:
            request["millrace"] = {"lane": self.lane}
        return request | {"stream": True}


class Draft(Question):
    """A message that may still be empty, for viewing its code."""

    prompt: Annotated[str, Field(max_length=CONVERSATION_CHARS_MAX)] = "Hello"
