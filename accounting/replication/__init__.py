"""Share one ledger between gateways: the leader writes, the others ask it.

Modules:
    client        Send groups of events to the leader through the outbox, one after the other, and wait for each
                  reply
    errors        Errors between gateways that share the ledger
    leader_lease  Hold the leader lease: one row of the database, valid for a few seconds at a time by the
                  database's own clock
    messages      Encode what gateways send to the leader, in msgpack: a message of many events, and one with an answer
                  for each
    outbox        Send groups of events through a table of the shared database, and answer them there; NOTIFY wakes the
                  other side
    server        Run the leader's end of the outbox: hand the events of other gateways to the one writer, and write
                  its answers
    shared        Share the ledger among several gateways: one writes, the others send it their events, and any can
                  take over
    tables        Define the tables of the ledger's leader and of the outbox, by which gateways that share a database
                  reach it
"""
