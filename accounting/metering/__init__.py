"""Meter usage: token counts, prices and their versions, and the cost of your machines.

Modules:
    counts        Read token counts from backends, and estimate or bound the tokens of texts without a tokenizer
    delivered     Count the tokens of a delivered answer
    own_cost      Compute what own machines cost their owner per second of work: electricity and wear
    power         Measure how many watts this machine draws: processors by RAPL counters, NVIDIA cards through NVML
    prices        Look up what a model costs on a lane, and in which list that price is
    rate_periods  Find which rate of own machines applies to which usage rows: each version of a rate has its
                  period
    recharge      Recompute old charges from the price that each row names and the counts in it
    tables        Define the tables of price history: each version under its content's hash, and from when a model
                  has it
    tokenizers    Load the tokenizers that count answers
    usage         Total the usage rows, grouped by day, model, lane, key or user
    versions      Keep the price book over time: each price is recorded before it is charged, so old charges can be
                  recomputed
"""
