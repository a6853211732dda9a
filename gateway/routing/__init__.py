"""Decide where a request goes: pure functions of policy, measurements and prices.

Modules:
    accuracy    How far predictions were off: the last errors of each backend, and their median
    breaker     A circuit breaker: a backend that keeps failing gets a pause, then one request at a time to show it
                is well
    decision    Ranks the lanes for a request, with reasons: a pure function of offers, health and weights
    dispatch    One request at one backend: what it waits for, and what its times teach about the backend
    fit         A small straight-line model that is learned as observations come: seconds out of a few known causes
    health      How each backend is doing: requests under way, what they wait for, failures, its breakers, its
                models' rates
    lengths     How long answers turn out to be, by key and model: a moving quantile, as limits are high and seldom
                reached
    need        A request's needs of a lane, as numbers and sets
    patience    When a first byte is late, when the wait for it ends, and how many requests may go to a second
                backend
    pauses      The operator's switch: buying on a lane, or selling, is paused until an operator resumes it
    policy      Hard rules, checked before offers are weighed: which offers may, can, and are wanted to answer
    prediction  Predicts a request's time in seconds and price in nano-USD at an offer, and the one cost to rank it
                by
    prefixes    How much of a prompt each backend has seen: chains of block hashes, and the backend that got them
                last
    priors      The rates assumed for a model at a backend that has not answered with it yet
    queueing    The order in which requests wait for a free slot
    rates       A model's rates at one backend, learned from its answers: seconds to the first token and for each
                next one
    reasons     A decision's numbers in words and as data
    router      Puts the facts of this moment before the decision: what is on offer, how it has been doing, what is
                asked
    shortlist   The offers that may and can answer, computed once for similar requests
    tables      The table of pauses that operators set at run time
"""
