"""Figures that pages show, as pure functions of known data.

Modules:
    alerts        Alerts for users, each with its remedy: machines, lanes, ledger, credits
    cloud_prices  Cloud prices of models that local machines serve, as far as a price is known
    layout        Layout of the picture's machines and links: rows that alternate direction, or one column
    machines      Machines, and the links between them, as tables show them
    models        Models as the console lists them: endpoints, state and price
    month         The last thirty days as rows for charts and tables: tokens, money, local share, savings, by
                  day
    now           The last minutes as chart rows: tokens per second of each lane, and time to first token
    picture       The cluster as a picture: machines as fill levels, links between stages, the bottleneck
    savings       What local machines' tokens would have cost in the cloud, less their own cost, for known prices
    usage         Tokens and money by day, lane and model from the ledger, cached for a while; past days longer
"""
