"""The millrace command: one module for each group of commands.

Modules:
    advise          `millrace advise` and `millrace plan`: where a model should run, before it is downloaded
    batches         `millrace batch`: list and cancel batches
    bench           `millrace bench`: the speed of a model, with one and with many concurrent requests
    budgets         `millrace budget`: spending limits of keys, users, teams and organizations per day or month
    by_hand         Manual entries by operators, each posted once per id: adjustment, goodwill, write-off, provider
                    invoice
    chat            `millrace chat`: a conversation in the terminal, with lane and speed of each answer
    chat_request    Sends one message to an OpenAI-compatible address and measures the answer: lane, tokens,
                    seconds
    command         Makes commands of functions that call one service: adds --data-dir and --json, shows results and
                    refusals
    completion      Shell completion: models, keys and machines of the running gateway; silently empty without one
    config          `millrace config`: the settings in force, where each came from, and the path of the settings
                    file
    credit          `millrace credit`: credits for paid lanes, given by the operator of the machine
    disk            Downloaded models on this machine's disk: their size, and removal
    doctor          `millrace doctor`: find what is wrong on this machine, and fix what can be fixed
    download        Downloads one file of a model from Hugging Face into the library's cache, resuming an
                    interrupted download
    earnings        `millrace offers`, `earnings` and `payout`: marketplace offers, what was sold, and payouts
    gateway_client  Requests of commands to the gateway that runs on the same data directory
    identity        `millrace identity`: this gateway's identity on the market; rotating, revoking and recovering
                    its key
    keys            `millrace key`: create, list, rotate, limit and revoke API keys
    leave           `millrace leave`: remove this machine from its cluster
    ledger          `millrace ledger`: verify the ledger's signatures and sums
    load_progress   Progress of loading a model: download, reading by the gateway, loading by the cluster's
                    machines
    machines        `millrace join`, `nodes`, `machines` and `token`: add and remove machines of the cluster
    main            The `millrace` command with all subcommands
    market          `millrace market`: sellers, audit results about them, and the prompts used for audits
    models          `millrace pull`, `run`, `ps`, `stop` and `rm`: models on this machine's disk and in memory
    output          Output of commands: data on stdout, messages on stderr, one exit code for each kind of end
    partners         `millrace partner`: bilateral credit lines with known gateways, without a marketplace
    payments        `millrace payments`: the state of payments through Stripe
    pool            `millrace pool ...`: inference servers, as the running gateway knows them
    prices          `millrace prices`: current prices, their history, and a check of past charges
    pull            Downloads a model from Hugging Face with progress bars: one per file, and one for all files
    reference       The command line as a page of documentation: `python -m gateway.cli.reference >
                    docs/commands.md`
    requests        `millrace requests`: recent requests with their routing decisions
    route           `millrace route`: simulate where a request would go now, and why
    selling         `millrace sell`: sell idle capacity, beside the gateway that runs on the same data directory
    serving         `millrace up`: start a gateway, its local nodes and its cluster
    store           Helpers for commands on the database, with or without a running gateway
    topups          `millrace topup` and `millrace statement`: buying credits, and the transfers of an account
    usage           `millrace usage`: usage and cost by day, model, key, team and more
    users          `millrace users`, `org` and `audit`: users, their roles, and the audit log
"""
