"""Audit sellers: the evidence of what they run, what it says, and what follows. Pure.

Modules:
    canaries    Make and check canaries: requests with known answers, which look like any other request
    conduct     Judge how an account has behaved in disputes: what the next one costs, and whether it is believed
    disputes    Decide disputes: buyer and seller signed different counts of one request
    evidence    State what an auditor may say in a listing: the tier that its passed audits reach, and a hash of
                them
    findings    Sign and read auditors' findings about sellers, for readers that trust them
    logprobs    Read from log-probabilities how sure an engine was of each token of its greedy answer
    prompts     Prove what a prompt was: a party that knows a request's keys can show what was sealed in it
    rates       Decide how often a seller is audited, by its status and its record
    replay      Send the same greedy request to several sellers of one model, and find the one that answers alone
    sequential  Decide when failures are too many to be chance: a bet against the claim that a seller is honest
    verdicts    Decide what follows from audits: more audits, no more requests, or the loss of unpaid earnings
"""
