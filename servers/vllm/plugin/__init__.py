"""The vLLM plug-in: a scheduler class that runs a policy inside vLLM's engine core.

In: `--scheduler-cls`, the server's environment, tags of requests. Out: scheduling decisions, engine
events. vLLM imports this package, so it uses only the standard library and vLLM.
"""
