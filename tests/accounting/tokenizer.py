"""A small byte-level tokenizer of the kind that most models have, as a file."""

import hashlib
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from accounting.metering.tokenizers import Pinned


def make_tokenizer(folder: Path) -> Pinned:
    """With what must not count: it cuts long texts off, fills short ones up, and begins with a special token."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=alphabet, special_tokens=["<s>"], show_progress=False
    )
    tokenizer.train_from_iterator(["the mill grinds what the race brings"] * 10, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    tokenizer.enable_truncation(8)
    tokenizer.enable_padding(length=8)
    path = folder / "tokenizer.json"
    tokenizer.save(str(path))
    return pinned(path)


def pinned(path: Path) -> Pinned:
    return Pinned(path, hashlib.sha256(path.read_bytes()).hexdigest().upper())
