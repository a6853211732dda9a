"""What several gateways agree on: leadership and membership, over the database or etcd.

Modules:
    coordinator   The interface of every coordinator: leader leases, which one process holds at a time, and small
                  entries
    database      Coordinate gateways that share a database: SQLite on one machine, PostgreSQL otherwise
    etcd          The coordinator on etcd, which works while more than half of its members do
    etcd_members  Calls to etcd's JSON gateway (v3) at whichever member answers
    factory       Builds the coordinator from the settings, and runs this gateway's tasks that use it
    fence         Fence a job's transaction, so that no process commits after it has lost the lease
    leadership    Lead a job: claim its lease whenever it is free, and keep the lease by renewing it in time
    membership    Track which processes are present: each one publishes its facts periodically and reads the
                  others'
    rights        Share revoked keys, so that every process knows them a moment later
    tables        Define the leases and entries of gateways that share a database
"""
