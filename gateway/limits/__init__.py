"""Limits of requests, tokens and spend, counted here or in Redis for all gateways.

Modules:
    admission       Limits the number of requests in flight
    central         Limits in Redis: one call reports and draws for many counters
    central_script  What Redis does, in one step, when a process reports and draws: the rules of limits that
                    several share
    clock           The wall clock for limits: it never goes back, and never stops
    counters        Counters of a limit's remaining amount
    factory         Limits as a service: alone in this process, or shared through Redis with others
    headers         OpenAI's headers about limits
    leased          A counter of a limit that several processes share: this process's slice and its next order
    leases          Limits that several gateways share: background tasks draw, report and return slices
    limits          The limits of a request's key, user and organization together; the entry point of
                    `gateway.limits`
    local           Limits of a single gateway: exact, in this process, starting from the use recorded in the
                    ledger
    lookups         Reads counters from the ledger until it answers: a slow ledger refuses no caller and loses no
                    limit
    orders          Messages between a process and the shared counters of a limit
    past_use        Reads a limit's use from the ledger, as the initial value of counters that are not in memory
    plans           The counters of one request: it takes from all of them at once, or from none
    refusals        Error texts for limits that are reached
    tables          Running sums of the usage of keys, users, teams and organizations, from which limits start
    ticket          One request's reservation in its caller's limits, from entry to end
    windows         Starts and ends of spans on the UTC calendar, in whole seconds since 1970
"""
