"""Starts and stops vLLM. In: a server configuration. Out: a running server on loopback."""
