"""Count what a request and its answer amount to in tokens, by one rule for buyer, seller and marketplace.

Modules:
    answer         Assemble an answer from OpenAI's chunks so far: its texts, their hash, and how it ended
    measure        Measure how large a tokenizer's tokens are, so that prices per token can be compared
    padding_flags  Detect padding in an answer: invisible characters, blank space, or repetition
    patterns       List the patterns that known models' tokenizers split texts by
    shapes         Decide which third-party tokenizers are accepted: those that neither blow texts up nor take long
    token_count    Count tokens of prompts and answers as the market bills them: from text alone, by the listing's
                   tokenizer
"""
