"""Files that callers upload, and batches of requests that are answered on idle capacity.

Modules:
    batch       The state of a batch, and its form in the API
    batches     Files and batches as the rest of the gateway uses them: their stores, and a signal for changes
    file        A stored file, and its form in the API
    file_store  The folder of file contents, with one subfolder per tenant, and its size limits
    files       Files that callers upload, and output files of batches: content on disk, and a row for each
    forms       Parse an upload's form as it arrives: fields are kept, the one file is written to disk in pieces
    items       The remaining requests of a batch, in file order; retries come when they are due
    job         One unfinished batch in memory: finished, running and remaining requests; owned by the runner's
                event loop
    lines       The input of a batch, one JSON object a line: read in portions, with a limit on each line
    output      A batch's output: answers in one file, errors in another, each line written as soon as it is known
    placement   The lane for a request of a batch now: idle own machines, paid lanes if time runs out, or none yet
    receipts    Wait until a paid request is in the ledger: only then may its answer count as done
    reply       The result of one request of a batch, and whether it is worth asking again
    store       Batches in the database
    tables      Files and batches, one row each
    validation  Validate every line of an input before the first request is sent; pure except for reading the file
"""
