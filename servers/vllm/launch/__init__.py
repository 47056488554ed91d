"""Starts and stops vLLM.

In: a `ServerConfig` and a folder. Out: a running server on loopback (`server.launch`), several of
them (`replicas`), and the reason if one cannot start (`failure_cause`).
"""
