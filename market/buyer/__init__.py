"""The buyer: a separate process that alone holds this gateway's keys and credit on the market.

The gateway's process imports `program`, `owed_reconciler` and `purchase_request`. Both sides import `orders` and
`owed`. All other modules run in the buyer's process.

Modules:
    __main__             `python -m market.buyer`: read one line of orders from stdin and serve them until stdin
                         closes
    answer               The answer for the gateway: OpenAI's stream or object, with our own token counts
    app                  The buyer's HTTP application: offers, and answers bought from sellers
    audits               Audits of sellers, drawn from ordinary requests within a daily budget, and their
                         consequences
    buyer                One request over as many sellers as it needs: the next one continues where one broke off,
                         and is no dearer
    carrier              The strict format of a seller's event stream: a nonce, sealed pieces and keep-alive events
    channels             The channels to one seller: which has room for a request, on which lane, with which
                         sequence number
    chunk_splitter       Split long chunks into parts, without I/O
    chunks               OpenAI stream chunks from an untrusted seller: known fields of known types pass, rebuilt
                         by us; the rest is dropped
    credit               Buying credit: channels opened by the marketplace's allocations, renewed before they run out
    dispute_responder    Answer disputes opened by sellers with what both sides signed: receipts only, never any
                         text
    errors               Failures of one seller; the gateway gets them as a `Refusal`
                         (gateway.lanes.cloud.worker.errors)
    flow                 Flow control between buyer and gateway: the buyer runs at most a few kilobytes ahead
    lines                Buying from partners: a channel on each credit line, without a marketplace and under our own
                         identity
    listing_sample       The choice of listings to show if there are too many: a flood of new identities gets only
                         a limited share
    logprobs             Log probabilities from an untrusted seller, in OpenAI's two forms: only numbers and short
                         texts pass
    market_request       The part of a request that a seller may see: what shapes the answer, nothing about the
                         caller
    marketplace_client   Client of the marketplace: its identity, allocations for sellers, and settlement of what we
                         signed
    orders               The gateway's orders to the buyer: one line of JSON on its stdin, so that nothing of it
                         shows in `ps`
    owed                 The buyer's report of its requests' costs, repeated until the gateway confirms that the
                         ledger has them
    owed_reconciler      Book what we owe sellers beyond what requests were charged: from the buyer's process into
                         the ledger
    program              The buyer's program, as the gateway runs it
    purchasable_listing  A listing from the point of view of a buyer
    purchase             One job at one seller: send, receive, count and sign
    purchase_request     The gateway's request to its buyer
    receipt_submitter    Send what we signed to the marketplace until it takes it, so that no seller settles without it
    receipts             Our own receipts: for answers that ended, and for answers that an earlier process left
                         unfinished
    response_decoder     One job's answer as it arrives: opened piece by piece, checked, and counted by ourselves
    sellers              Our experience with sellers: outcomes, refusals and latency
    server               The buyer's process: open everything, serve the application, end everything in order
    shielded             Work that must finish once it has begun, even if the caller stops waiting
    shop                 The listings that can be bought now, their terms, and why others cannot
    store                buying.db: channels and their credit, used sequence numbers, and what was signed
    tables               The tables of buying.db, and how it is opened: every commit is a full sync
    tokenizers           Tokenizers that listings pin: fetched from a seller once, checked by hash, stored in a
                         folder
    vouchers             Promise to pay for one request: take a lane, seal the request, sign the voucher
"""
