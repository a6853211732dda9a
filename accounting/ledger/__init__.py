"""The ledger itself: journal entries, balances and the one writer.

Modules:
    accepted     Record accepted breaches: broken rules that an admin has examined
    balances     Read balances and statements of accounts through the given session or connection
    bulk_insert  Insert many rows into one table with few statements
    conduct      Define the rules about events
    denials      Explain to an event's originator why the database refused it
    health       Check every rule that the ledger must keep, and report each breach by the rule's name
    journal      Write a batch of events in one transaction: the accepted events, and a reason for each refused one
    poster       Run the one writer: it takes events from many threads, books them in groups, and answers after the
                 commit
    postings     Define what the ledger is asked to write: one business event with its transfers, as plain
                 immutable data
    scope        Define what a check of the ledger looks at, and what a gateway knows about it from elsewhere
    sums         Define the rules about the accounts' totals
    writer       Take events and answer when they are on disk: our own poster, or the client of another gateway's
"""
