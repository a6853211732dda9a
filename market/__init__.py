"""Trade capacity of other people's machines: listings, matching, payment, encryption.

Its protocol knows no HTTP.

Modules:
    audits          Audits of sellers among ordinary requests: what is asked, when, and what is remembered
    buyer           The buyer: a separate process that alone holds this gateway's keys and credit on the market
    credit_lines    Trading partners: gateways with which this one has a credit line, without a marketplace between
                    them
    errors          Errors between gateways that trade, one class per meaning
    marketplace     The marketplace: reserves credits for sellers, settles what was promised, and pays it out
    network         Code shared by buyers, sellers and marketplaces: identity, outbound HTTP, and the exchange of
                    signed records
    protocol        The market's protocol: records, listings, channels, encryption
    seller          The seller: `millrace sell`, a process beside the gateway that offers capacity its machines do
                    not need
    settings        The settings of those who trade: buyer, seller and marketplace
"""
