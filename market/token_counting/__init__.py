"""Count tokens with untrusted tokenizers in a separate process, which may crash, hang and be replaced.

parent side    sandboxed_tokenizers   counts for a buyer or a house; which tokenizers are rejected
               process                one such process: started, asked, ended
both sides     frames                 the messages between them
child side     __main__               the process: checks files, loads them, counts
"""
