"""How much of a prompt each backend has seen: chains of block hashes, and the backend that got them last.

A prompt is cut into blocks of 64 bytes. Each block's checksum includes the previous one, so equal checksums mean
equal prefixes. The first includes the model, the tenant and the privacy class under a secret of the process. So a
fast answer does not reveal another tenant's prompt. A collision costs only a wrong guess.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from zlib import crc32

from gateway.dialects.openai import ChatRequest, CompletionRequest, Request

BLOCK_BYTES = 64
BLOCKS_MAX = 256
# About a megabyte of text, as much as large servers keep; 2 MB here.
REMEMBERED_BLOCKS = 16_384
# The limit for all backends together: 30 MB of memory.
_ALL_BLOCKS_MAX = 2**18

# A backend that reports less than this share of the sent prefix has dropped it.
_CONTRADICTED = 0.5
_BLOCKS_LEAST = BLOCKS_MAX

_BYTES = BLOCK_BYTES * BLOCKS_MAX

Chain = Sequence[int]


def chain_of(request: Request, *salt: str) -> Chain:
    """Return the checksums of a prompt's whole blocks, from its beginning; none for prompts of tokens."""
    text = _text_of(request).encode("utf-8", "surrogatepass")
    at = hash(salt) & 0xFFFFFFFF
    ends = range(BLOCK_BYTES, min(len(text), _BYTES) + 1, BLOCK_BYTES)
    return [at := crc32(text[end - BLOCK_BYTES : end], at) for end in ends]


def _text_of(request: Request) -> str:
    """Return the part of the prompt's text that is used."""
    if isinstance(request, ChatRequest):
        parts: list[str] = []
        size = 0
        for part in _said(request):
            parts.append(part)
            size += len(part)
            if size >= _BYTES:
                break
        return "\n".join(parts)
    if isinstance(request, CompletionRequest) and isinstance(request.prompt, str):
        return request.prompt[:_BYTES]
    return ""


def _said(request: ChatRequest) -> Iterator[str]:
    """Tools precede the conversation in every chat template; their names identify the set."""
    if request.tools:
        functions = (tool.get("function") for tool in request.tools)
        yield from (str(function.get("name"))[:_BYTES] for function in functions if isinstance(function, dict))
    for message in request.messages:
        yield message.role
        content = message.content
        if isinstance(content, str):
            yield content[:_BYTES]
        elif content:
            for part in content:
                yield (part.text or part.type)[:_BYTES]


class PrefixIndex:
    """The blocks sent to each backend; the least recently used are dropped first.

    A block never outlives the previous one, because a chain is renewed from its end. So a match can be found by
    bisection.
    """

    def __init__(self, blocks_max: int = REMEMBERED_BLOCKS) -> None:
        self._blocks_max = blocks_max
        self._sizes: dict[str, int] = {}
        self._seen: OrderedDict[str, OrderedDict[int, None]] = OrderedDict()
        self._total = 0

    def insert(self, label: str, chain: Chain) -> None:
        """Note that the backend gets a prompt with these blocks."""
        if not chain:
            return
        seen = self._seen.setdefault(label, OrderedDict())
        self._seen.move_to_end(label)
        before = len(seen)
        for block in reversed(chain):
            seen[block] = None
            seen.move_to_end(block)
        size = self._sizes.get(label, self._blocks_max)
        while len(seen) > size:
            seen.popitem(last=False)
        self._total += len(seen) - before
        while self._total > _ALL_BLOCKS_MAX:
            self._forget_one()

    def _forget_one(self) -> None:
        """Remove one entry of the backend that has received no prompt for the longest time."""
        label, oldest = next(iter(self._seen.items()))
        oldest.popitem(last=False)
        self._total -= 1
        if not oldest:
            del self._seen[label]
            self._sizes.pop(label, None)

    def learn_size(self, label: str, believed: int, cached: int) -> None:
        """Note the cached tokens that a backend reported.

        If they are far fewer than sent, its cache is smaller.
        """
        if not cached and label not in self._sizes:
            return  # many always report zero
        size = self._sizes.get(label, self._blocks_max)
        if cached < _CONTRADICTED * believed:
            size = max(_BLOCKS_LEAST, min(size, len(self._seen.get(label, ()))) * 9 // 10)
        elif size < self._blocks_max:
            size = min(self._blocks_max, size + size // 100 + 1)
        self._sizes[label] = size

    def matched_bytes(self, label: str, chain: Chain) -> int:
        """Return the length of the prefix that this backend was sent before."""
        seen = self._seen.get(label)
        if not seen or not chain or chain[0] not in seen:
            return 0
        low, high = 1, len(chain)
        while low < high:
            middle = (low + high + 1) // 2
            if chain[middle - 1] in seen:
                low = middle
            else:
                high = middle - 1
        return low * BLOCK_BYTES

    def holds_half(self, label: str, chain: Chain) -> bool:
        """Return whether it was sent at least the first half; a quick check."""
        seen = self._seen.get(label)
        return bool(seen and chain) and chain[len(chain) // 2] in (seen or ())

    def blocks(self, label: str) -> int:
        return len(self._seen.get(label, ()))
