"""The seller: `millrace sell`, a process beside the gateway that offers capacity its machines do not need.

Modules:
    accounts           Channels that buyers have here: read from the file on first use, with what runs on them now
    agent              The seller, assembled: everything that lives as long as its process, and the order in which
                       it stops
    answer_stream      Serve an answer from its first event to its final receipt, which is signed whatever happens
                       in between
    app                The agent's HTTP application: a short list of exact paths, each with a maximum body size
    callers            Limits on callers of the agent, per network and in total
    carrier            One job's answer on the buyer's own HTTP request, and the server's side of its connection
    channel_submitter  Submit what was signed on channels to the marketplace, in any order, until it knows everything
    chunks             Rewrite our own gateway's chunks for buyers: only known fields, in pieces that can be sealed
    credit             Check a job's backing: an allocation to us by a trusted marketplace, or a credit line that we
                       signed, too
    delivery           Deliver one answer: seal it piece by piece, count what was accepted, sign interim and final
                       receipts
    denied_prompts     Show prompts that their buyers deny to the marketplace, which counts them and books their cost
    gateway_request    Check a buyer's request before any model is used: known fields, text only, no longer than
                       paid for
    job_handler        Serve one job from its bytes to its final receipt
    live_listings      Listings that are still valid: a voucher is accepted for any listing that has not expired,
                       at its prices
    marketplace_client  Client of the marketplace for sellers: its identity, pinned at first contact, and what sellers
                        send it
    own_gateway        Client of our own gateway beside this process: its idleness, its preemptible key, its answers and
                       its ledger
    process            The seller's process: its loopback socket, its way in, its signals and its shutdown
    proofs             Sealed requests, kept in bounded memory for as long as their buyers may still deny them
    publisher          Publish listings: sign them again before they expire and on each change, and withdraw them
                       in time
    pull               The way in without a tunnel: ask the marketplace for work, and carry it to our own port
    reach              The way in for buyers: set by the tunnel or pull task, followed by the code that lists it
    relay_transfer     Carry one request from the marketplace to our own port, and its answer back in numbered parts
    seals              The keys that requests are sealed for: in memory only, replaced hourly, kept while still
                       usable
    sellable_models    The models for sale, as far as our own gateway can serve them now, and their listings
    states             The states that a seller reports, in addition to the reasons why it sells nothing
    store              The seller's durable state in its own SQLite file: on disk before the last piece of an
                       answer is sent
    tunnel             The buyers' way in: keep cloudflared running, and publish its address for as long as it
                       leads here
    tunnel_keeper      Run a program that must not outlive its parent: it is told to end when our standard input
                       closes
    tunnel_process     One run of cloudflared: started in its own session, checked for health, stopped
    upstream           Our own gateway's answer to one job: a task reads ahead a little and stops once the answer
                       is not wanted
    watch              When this machine sells: turn the gateway's idleness and the owner's rules into listings and
                       admission
"""
