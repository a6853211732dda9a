"""What several gateways agree on: leadership and membership, over the database or etcd.

Modules:
    coordinator   Define what a coordinator does, whatever stores it: seats that one process holds at a time, and
                  small entries
    database      Coordinate gateways that share a database: SQLite on one machine, PostgreSQL otherwise
    etcd          The coordinator on etcd, which goes on while more than half of its members do
    etcd_members  Calls to etcd's JSON gateway (v3) at whichever member answers
    factory       Builds the coordinator from the settings, and runs this gateway's tasks that use it
    fence         Fence a job's transaction, so that no process commits after it has lost the seat
    leadership    Lead a job: claim the seat whenever it is free, and keep it while this process renews it in time
    membership    Track which processes are present: each one publishes its facts periodically and reads those of
                  the others
    rights        Share revoked keys, so that every process knows them a moment later
    tables        Define the seats and entries of gateways that share a database
"""
