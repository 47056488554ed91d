"""Code that several formats use: sessions of requests with times (`calls`, `timed_calls`,
`sessions`, `moments`), rows, chat messages, spans of OpenTelemetry, and files that refer to each
other (`linked`).
"""
