"""Train the demo model: corpus, tokenizer, model, training loop."""
