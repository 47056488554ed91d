"""A policy inside vLLM. In: `--scheduler-cls`, the environment. Out: scheduling decisions, events.

vLLM imports this folder, so it uses the standard library and vLLM only.
"""
