"""The buyer: a separate process that alone holds this gateway's keys and credit on the market.

gateway side   program         how the gateway runs it (supervised by gateway.cloud_worker.supervisor)
               booking         books what we owe sellers beyond what requests were charged
both sides     orders          what the gateway tells the buyer: folder, house, peers, bounds
               offers          listings that can be bought now
               owed            what requests cost
buyer side     __main__ server app   reading the orders; the process; its HTTP application
               buyer           one request over as many sellers as it needs
               wanted          the fields of a request that a seller may see
               purchase        one job at one seller, from voucher to receipt
               carrier chunks  strict parsing of answers: events; OpenAI's chunks
               hearing         one job's answer: opened, checked, counted
               answer          the answer for the gateway: a stream or one object
               channels credit house   what we owe whom; what we may spend; the house that guarantees it
               sellers         sellers' results so far: track record, caps, breaker
               shop            which listings can be bought, and why others cannot
               tokenizers      fetched from sellers, checked by hash, tested (gateway.counting)
               store tables    buying.db: what must not be lost
               submitting      sending signed receipts to the house
               upkeep          periodic tasks
               unbroken        work that finishes even if a caller hangs up
               errors          failures of a seller
"""
