"""Keep what one gateway owes another in records that both sign: mergeable in any order, no centre needed.

Modules:
    admission     Check, before a seller runs the model, whether this voucher will pay for this request
    channel       Represent what is known of a channel and its sum
    credit_line   Trade between partners: two gateways owe each other up to a limit, without a marketplace
    evidence      Prove a channel's sum to a party that trusts no one: collect the few signed records behind it,
                  and read them back
    job           Encode what a buyer sends a seller for one request, and the pieces of the answer, without any I/O
    next_voucher  Make the buyer's next voucher of a lane, within the channel's credit
    statements    Define what buyer and seller sign about one request: a voucher before it, receipts during and
                  after the answer
    terms         Define who trades with whom, and on what credit: an allocation of the marketplace, or a credit line of
                  partners
    transcript    Hash what was delivered so far, equally at buyer and seller, however the text was split on the
                  way
"""
