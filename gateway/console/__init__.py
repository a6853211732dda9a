"""The web console: pages made on the server, kept live by events.

Modules:
    access            The visitor of a page, and the dependencies that admit visitors or send them to the sign-in
                      page
    browser           Reads a browser's request: the session cookie, form fields, and their origin
    console           Assembles the console: its pages, its live streams, and its own page for unknown addresses
    errors            Errors of the console: a page in its frame, a toast, or a redirect to the sign-in page
    feeds             Live pages: each change is rendered once for all viewers of the same page, and not at all
                      without viewers
    figures           Figures that pages show, as pure functions of known data
    filters           Formats figures for pages: money, sizes, times, counts, ids, names of browsers
    forms             Forms: size-limited, checked for their origin, validated by a model; errors appear beside
                      their fields
    live              One stream of server-sent events per open page: the limits on streams, and when they end
    navigation        The console's pages: their paths, their sidebar groups, and who may see each
    pace_limit        Limits how often expensive figures are recomputed, so that together they take at most a share
                      of the time
    pages             Lists every page of the console, one module or package each
    renderer          Renders templates: whole pages in the console's frame, parts of pages, and toasts
    shared_values     Values that several live pages share, computed once for all of them
    sheets            CSV files that are sent while their rows are read
    sign_in           Sign-in and sign-out: with an API key, a password, or through the identity provider; and the
                      link for a password
    static_files      Files that pages load: read once and versioned by content, so that browsers may cache them
                      forever
"""
