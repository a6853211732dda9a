"""What operators see: access log, traces and history.

Modules:
    access_log  One line of JSON for every request, written by the batch: ids, counts and times, never a word of a
                prompt
    factory     Loads OpenTelemetry only if the settings enable it: it is an optional extra, and slow to import
    history     The metrics over time, in memory: every 5 s for an hour, every minute for a day; empty after a
                start
    logs        Our own and the libraries' log lines: one form, on stderr
    slots       Activity per equal period, of which the last are kept; and percentiles of counted buckets
    telemetry   Spans and metrics in OpenTelemetry's GenAI conventions, made of ended requests and sent from
                threads of the SDK
"""
