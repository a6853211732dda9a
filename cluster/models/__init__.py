"""What models are: files, hashes, shapes, families, tokenizers. Needs no torch."""
