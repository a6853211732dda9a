"""Decide where a request goes: pure functions of policy, measurements and prices.

Modules:
    breaker     A circuit breaker: a backend that keeps failing gets a pause, then one trial request at a time
    decision    Ranks the lanes for a request, with reasons: a pure function of offers, health and weights
    dispatch    One request at one backend: its wait, and learning from its times
    fit         A small linear model, learned online: seconds as a sum of a few known causes
    health      Each backend's health: requests in progress, pending prompts, failures, breakers, its models' rates
    memory      The records of answers across backends: their lengths, and the accuracy of predictions
    need        A request's needs of a lane, as numbers and sets
    patience    When a first byte is late, when the wait for it ends, and how many requests may go to a second
                backend
    pauses      The operator's switch: buying on a lane, or selling, is paused until an operator resumes it
    policy      Hard rules, checked before offers are weighed: permissions, abilities and preferences
    prediction  Predicts a request's time in seconds and price in nano-USD at an offer, and the one cost to rank it
                by
    prefixes    How much of a prompt each backend has seen: chains of block hashes, and the backend that got them
                last
    priors      The assumed rates for a model that has not answered at a backend yet
    queueing    The order in which requests wait for a free slot
    rates       A model's rates at one backend, learned from its answers: seconds to the first token and for each
                next one
    reasons     A decision's numbers in words and as data
    router      Collects the inputs of a decision: the current offers, their health, and the request's needs
    shortlist   The offers that may and can answer, computed once for similar requests
    tables      The table of pauses that operators set at run time
"""
