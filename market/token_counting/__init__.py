"""Count tokens with untrusted tokenizers in a separate process, which may crash, hang and be replaced.

The parent imports `sandboxed_tokenizers` and `process`; `__main__` is the child; `frames` are what they exchange.

Modules:
    __main__              `python -m market.token_counting`: load tokenizers and count with them, as frames on
                          stdin ask, until stdin closes
    frames                The messages between a parent and its counting process: msgpack frames, each after its
                          length
    process               One counting process as its parent uses it: started, asked one question at a time, ended
    sandboxed_tokenizers  Count with untrusted tokenizers in a separate process, which a bad tokenizer cannot harm
                          beyond itself
"""
