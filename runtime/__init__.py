"""Common tools that no other package owns: files, database, HTTP, worker processes, errors.

Modules:
    afterwork    Work left over from requests that do not wait for it, such as stopping the slower of two backends
    children     Child processes: how this process starts, asks and ends them, and how they end with it
    data_folder  The folder of everything kept on this machine: who may use it, and where things lie in it
    database     Engines and sessions on SQLite and PostgreSQL
    errors       Errors of a server that refuses a request, one class per meaning
    files        Files that are replaced in one step and are on disk when that returns
    hang_ups     Limits how many prompts each payer may leave unpaid by disconnecting before the answer begins
    http         HTTP/1.1 without a framework: client, upstream connections, bounded server connections
    interpreter  The command and environment of child processes, which must run Millrace's own code
    logs         Log lines of a process and its libraries, in one format on stderr; stdout is for data
    memory       Configures a process's memory: the C library's allocator, Python's collector and the kernel's
                 limits
    postgresql   Connections to PostgreSQL that bound every wait on this side, whatever the server or the network
                 does
    redaction    Removing what belongs to an operator's machine or to the ledger from texts that callers read
    request_ids  The id of one request: in its answer's header, in its log lines, in its row of the request log
    settings     Base classes of the sections of settings
    sse          Server-sent events, read from whatever pieces they arrive in
    times        Times as users and programs read them
    workers      Worker processes: started with one line of JSON, supervised, replaced without losing an answer
"""
