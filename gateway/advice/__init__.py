"""Recommend where a model should run: hardware fit, cost and break-even.

Modules:
    advice       Advice on where a model should run: one machine, lower precision, several machines, the pool or a
                 provider
    break_even   The number of tokens a day from which own machines are cheaper than a provider
    facts        Advice as plain data, for programs and commands
    model_shape  Read a model's shape without its weights: its config.json, from this machine or from Hugging Face
    question     The input of advice on a model: its shape, the machines, other copies of it, and costs
    service      Advice from a running gateway: its machines and links, its pool, its providers' prices, its costs
    ways         The ways to serve a model, each with whether it is possible, and its predicted figures
"""
