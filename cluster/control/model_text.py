"""A model's text handling in the controller: how it writes tools and thoughts, and how long prompts are."""

import asyncio
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from cluster.generation import ChatPrompt
from cluster.models.chat_format import ChatFormat

if TYPE_CHECKING:
    from cluster.models.text import TextCodec

# Longer prompts are not counted: they fit no model.
_TOKENS_MAX = 10_000_000


@dataclass(slots=True)
class ModelText:
    """The tokenizer, read on first use. A large vocabulary takes half a second and a hundred megabytes."""

    folder: Path
    format: ChatFormat
    _codec: "TextCodec | None" = None
    _reading: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def open(cls, folder: Path) -> "ModelText":
        """Open a model's folder. Raise ModelInvalid if its chat template is unusable."""
        # Import Jinja late: other lanes need no Jinja.
        from cluster.models.chat_template import read_folder_template

        template = read_folder_template(folder)
        return cls(folder, template.format if template else ChatFormat())

    async def count(self, prompt: ChatPrompt) -> int:
        """Return the number of tokens of the prompt as a coordinator would encode it.

        Raise RequestInvalid, ContextLengthExceeded or ModelInvalid.
        """
        return await asyncio.to_thread(self._count, prompt)

    def _count(self, prompt: ChatPrompt) -> int:
        return len(self._read().encode(prompt, _TOKENS_MAX))

    def _read(self) -> "TextCodec":
        from cluster.models.text import TextCodec  # Import it late: most gateways never count tokens.

        with self._reading:
            if self._codec is None:
                self._codec = TextCodec(self.folder)
            return self._codec
