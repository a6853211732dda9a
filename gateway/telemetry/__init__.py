"""Telemetry for operators: access log, traces and history.

Modules:
    access_log  One line of JSON for every request, written in batches: ids, counts and times, never any prompt
                text
    factory     Loads OpenTelemetry only if the settings enable it: it is an optional extra, and slow to import
    history     The metrics over time, in memory: every 5 s for an hour, every minute for a day; empty after a
                start
    slots       Activity in equal time slots, of which the last are kept; and percentiles of histograms
    telemetry   Spans and metrics in OpenTelemetry's GenAI conventions, from ended requests, sent by the SDK's
                threads
"""
