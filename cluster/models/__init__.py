"""Models on disk: files, hashes, shapes, families, tokenizers. Needs no torch."""
