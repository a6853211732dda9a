"""The buyer: a process of its own that alone holds this gateway's keys and credit on the market.

gateway side   program         how the gateway runs it (supervised by gateway.cloud_worker.supervisor)
               booking         what sellers are owed beyond what requests were booked with, into the books
both sides     orders          what the gateway tells it: folder, house, peers, bounds
               offers          what it says could be bought now
               owed            what it says requests came to
buyer side     __main__ server app   the orders; the process; its HTTP application
               buyer           one request over as many sellers as it takes
               wanted          the fields of a request that a seller gets to see
               purchase        one job at one seller, from voucher to receipt
               carrier chunks  what comes back, read strictly: events; OpenAI's chunks
               hearing         a job's answer: opened, checked, counted
               answer          what the gateway is told of it: a stream, or one object
               channels credit house   who is owed what; how much may be; the house that stands for it
               sellers         how they have been doing: track, caps, breaker
               shop            which listings may be bought, and why others not
               tokenizers      fetched from sellers, by their hash, and tried out (gateway.counting)
               store tables    buying.db: what must not be lost
               submitting      what was signed, on its way to the house
               upkeep          what is done again and again
               unbroken        what comes to its end though a caller hangs up
               errors          what goes wrong at a seller
"""
