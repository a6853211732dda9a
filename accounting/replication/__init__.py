"""Share one ledger between gateways: the leader writes, the others ask it.

Modules:
    client        Connect to the leader's server: send a group of events, read its answers, then send the next
                  group
    credentials   Make the certificate of one process that shares the ledger: new at every start, identified by its
                  fingerprint
    errors        Errors between gateways that share the ledger
    frames        Encode what gateways send to the leader: a frame of many events, answered by a frame with one
                  answer for each
    handshakes    Limit the handshakes in progress at the leader's server: in total and per address
    leader_lease  Hold the leader lease: one row of the database, valid for a few seconds at a time by the
                  database's own clock
    server        Run the leader's RPC server: it passes events of other gateways to the one writer and returns the
                  results
    shared        Share the ledger among several gateways: one writes, the others send it their events, and any can
                  take over
    tables        Define the tables of the ledger's leader and of the gateways that share a database
"""
