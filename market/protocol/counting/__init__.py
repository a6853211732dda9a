"""Count what a request and its answer amount to in tokens, by one rule for buyer, seller and marketplace.

Modules:
    answer         Assemble an answer from OpenAI's chunks so far: its texts, their hash, and how it ended
    padding_flags  Detect padding in an answer: invisible characters, blank space, or repetition
    token_count    Count tokens of prompts and answers as the market bills them: from text alone, by the listing's
                   tokenizer
"""
