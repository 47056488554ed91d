"""Starts and stops vLLM servers.

In: a `ServerConfig` and a folder. Out: one running server on loopback (`server`), or several
(`replicas`), and the cause of a failure (`failure_cause`).
"""
