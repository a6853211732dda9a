"""Counting by strangers' tokenizers in a process of its own, which may die, hang and be replaced.

owner's side   aside      counts for a buyer or a house; who is not counted with any more
               process    one such process: started, asked, ended
both sides     frames     what they say to each other
child's side   __main__   the process: looks at files, loads them, counts
"""
