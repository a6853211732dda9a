"""The marketplace: reserves credits for sellers, settles what was promised, and pays it out.

Modules:
    allocations      Issue allocations: reserve a buyer's credits for one seller, and sign that they are reserved
    always           Identities whose records a marketplace always has room for: its own and its sellers', however many
                     others send
    amounts_due      Compute what a channel is worth at the marketplace, and when
    buyer_receipts   Keep signatures about a disputed request that the marketplace does not know: receipts that its
                     buyer submits
    context          Hold what every part of the marketplace works with
    decisions        Decide disputes: what is due, given both sides' signatures and submissions, and who loses the
                     fee
    dispute_history  Summarize a user's recent disputes for the rules of conduct
    dispute_state    Read what is disputed on a lane: both sides' statements, and the state of each lane
    disputes         Handle disputes: buyer and seller signed different counts of one request, and the marketplace
                     counts again
    earnings         Mature earnings, or withhold them until a dispute about their buyer ends
    fees             Manage the fee of a dispute: held from the party that opens it, and kept if it loses
    forfeiture       Forfeit earnings of a seller that did not sell what it listed: its buyers get their money back
    marketplace      The marketplace as its routes use it: calls in a few threads of its own, errors in the API's terms
    periodic         The marketplace's periodic tasks: book what has become due, and let earnings mature
    probation        Decide how long a seller is new: meanwhile earnings mature later, and a part of them is held
                     in reserve
    relay_credit     Check the backing of a relayed job: only jobs backed by this marketplace's credits are relayed
    relay_queue      The relay's queue, in memory: buyers' requests that wait for their sellers, and answers on the
                     way back
    relay_sessions   Sessions of sellers that poll for work: their key proves them once, then a token for an hour
    sellers          Register sellers: which of the marketplace's users an identity earns for
    settlements      Settle channels: merge what both sides have signed, and book what is due beyond earlier
                     bookings
    statements       Store identities' statements about their keys, as far as the marketplace has received them
    tables           Define the marketplace's tables: sellers, allocations, and what is known of each channel
    terms            Define the marketplace's terms, the same for everyone
    texts            Encode what a side of a dispute says was delivered
"""
