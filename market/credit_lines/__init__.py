"""Trading partners: gateways with which this one has a credit line, without a marketplace between them.

Modules:
    balance              The balance of two partners: what was bought, sold and paid on a line, what is owed, and
                         what may still be bought
    credit_line_service  The owner's actions on credit lines: offer, sign, acknowledge, end
    export               One side's knowledge of a credit line, as one line of text that can be sent by any means
    partners              All credit lines of a gateway: one file each under `market/partners`, read by all processes
                         when it changes
    partnership           One credit line as one of its sides knows it: who signed it, and what each acknowledged
    listing_exchange     Exchange listings with partners: each gateway asks the other for what it knows, and sends
                         what it knows
"""
