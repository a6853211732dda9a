"""Code shared by buyers, sellers and marketplaces: identity, outbound HTTP, and the exchange of signed records.

Modules:
    addresses        The check that an untrusted name resolves only to addresses of the public internet, in any
                     notation
    challenge        Prove who answers at an address: TLS only proves the name, and a tunnel's name may change
                     hands
    dialer           Connect to untrusted names: resolve, check every address, and connect only to the checked ones
    errors           Errors of requests to untrusted addresses
    gossip           Exchange records with other gateways until all know the same
    gossip_routes    POST /market/v1/gossip: other gateways, also unknown ones, compare records with us and send
                     their own
    gossip_wire      The messages with which two gateways exchange records: bounded on both sides, raw records as
                     strings
    identity         This gateway's identity on the market: its key and its statements about its keys, in a folder
                     of its own
    known            The records that this gateway knows, in memory and without a clock, with bounds on what others
                     can make it keep
    marketplace      What buyers and sellers share as a marketplace's clients: its identity, pinned at first contact,
                     and its answers
    outbound         HTTP to untrusted servers, whose addresses come from listings and which may answer anything
    record_keeper    The signed records that a gateway keeps, its own and others': in memory, and in a table for
                     the next start
    relayed_request  Messages between a marketplace and a seller without a tunnel: one request, and the parts of its
                     answer
    room             Limits on others' records, and the order in which they go: no source can displace another's
    statements_file  An identity's statements about its keys: raw records, one a line; each change replaces the
                     whole file
    tables           Signed records of others, as they arrived: which of them to believe is decided again at every
                     start
    throttle         Limit what each untrusted network may cost per minute; callers bound the total as well
"""
