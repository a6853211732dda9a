"""`millrace doctor`: find what is wrong on this machine, and fix what can be fixed.

Modules:
    command  `millrace doctor`: checks of this machine and its surroundings, with a remedy for each problem
    finding  One finding of the doctor: the state, and its remedy
    machine  Checks of this machine: free memory, GPU and driver, disk, Wi-Fi, power, heat, clock
    outside  Checks of connections: ports, the cluster's machines and links, the pool, the marketplace, the tunnel
    stores   Checks of stored data: the data directory and its permissions, secret files, the database, Redis, etcd
"""
