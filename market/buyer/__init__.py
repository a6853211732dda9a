"""The buyer: a separate process that alone holds this gateway's keys and credit on the market.

gateway side   program         how the gateway runs it (supervised by runtime.workers.supervisor)
               owed_reconciler books what we owe sellers beyond what requests were charged
               factory         opens the market lane with its buyer
               purchase_request   what the gateway asks the buyer to buy
both sides     orders          what the gateway tells the buyer: folder, house, peers, bounds
               offers          listings that can be bought now
               owed            what requests cost
buyer side     __main__ server app   reading the orders; the process; its HTTP application
               buyer           one request over as many sellers as it needs
               wanted          the fields of a request that a seller may see
               purchase        one job at one seller, from voucher to receipt
               carrier chunks  strict parsing of answers: events; OpenAI's chunks
               vouchers receipts   promising to pay for a job, and signing for what came
               response_decoder chunk_splitter   one job's answer: opened, checked, counted; long chunks in parts
               answer logprobs the answer for the gateway: a stream or one object; its log probabilities
               channels credit house   what we owe whom; what we may spend; the house that guarantees it
               lines           credit lines with friends, as channels
               sellers         sellers' results so far: track record, caps, breaker
               shop purchasable_listing   which listings can be bought, and why others cannot
               listing_sample  which listings are shown if there are too many
               audits          audits of sellers among ordinary requests
               tokenizers      fetched from sellers, checked by hash, tested (market.token_counting)
               store tables    buying.db: what must not be lost
               receipt_submitter dispute_responder   signed receipts to the house; answers to disputes
               periodic        periodic tasks
               shielded        work that finishes even if a caller hangs up
               flow            no more is read from sellers than the gateway takes
               errors          failures of a seller
"""
