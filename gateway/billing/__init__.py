"""Book finished requests: settlement, the request log, prices and payments.

Modules:
    asked              Requests that are executed once per idempotency key: a repeated request gets the first
                       answer
    batch_settlement   Book ended requests in batches: local usage as one journal entry, each hold separately,
                       late ones included
    bookkeeper         Records every request: its journal entry with a usage row, its log entries, its metrics
    decisions          A routing decision as one line of the request log: numbers only, formatted as text when it
                       is read
    finished_request   The record of an ended request: only what the ledger, the request log and the access log
                       need
    inspection         Inspects the ledger's rules; while one is broken, nothing is spent
    ledger_service     The gateway's access to the ledger: holds before paid work, captures after it, a usage row
                       for every request
    metering           Prices of the lanes, and what your machines' tokens cost
    model_terms        Aliases and prices that operators set at run time; they override the settings, in all
                       gateways
    payments           Payments as a part of the gateway; imported only if Stripe is configured
    recount            Counts answers' text with their models' tokenizers, in the background on the settlement
                       thread
    request_filter     The filter for rows of the request log, and how to page through them, newest first
    request_log        The result of every request, written in batches in the background, and kept for a limited
                       time
    settlement_worker  The thread that books ended requests in batches and hands each batch to the logs
    shared             A gateway's part in a ledger that several share in PostgreSQL
    sheets             Rows as CSV for spreadsheets (RFC 4180), without text that a spreadsheet would read as a
                       formula
    spool              Settlements that the ledger could not accept, in a file of the data directory until it accepts
                       them
    tables             Tables of the results of requests, and of the accounting API's idempotency keys
    usage_report       Usage totals for the accounting API and the command line
    verification       Verifies the ledger for HTTP requests, in a separate process, because it keeps a core busy
    verify_process     A program that reads a line from stdin, verifies the ledger, prints the verdict, and exits
"""
