"""Prove the ledger: signed blocks over journal entries, and their verification.

Modules:
    blocks        Read and append blocks: the newest, a page of them, and the keys that signed them
    canonical     Define the exact bytes that a block's hash covers
    entries       Read the ledger's rows in the order of their events, as the driver returns them: there are millions
    fold          Add up the transfers of each account one by one, and compare the sums with the account's totals
    kept          Keep the newest block that a gateway has seen in a file beside its signing key
    links         Check blocks next to each other: which can be read together, and what is wrong with one after
                  another
    maker         Run the maker of blocks: a thread that reads committed events, independent of the writer, and
                  proves them
    signing_key   Manage the key that signs blocks: a file of one gateway, made on first use and replaceable at any
                  time
    suspects      Find which event of a block was changed: a block has one hash, but each event keeps its own
                  request hash
    tables        Define the tables of proofs: blocks of events, signed and chained, and the keys that signed them
    tail          Judge the events that are in no block: a few young ones are normal; many or old ones are not
    verdict       Represent a verification's result: how far it got, and every place where the ledger differs from
                  their proof
    verification  Read the ledger from the first block to the last event, and report where it differs from its
                  proof
"""
