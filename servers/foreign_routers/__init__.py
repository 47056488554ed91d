"""Runs routers of other projects in front of vLLM servers, as baselines for ours.

In: a `ForeignRouter` and the servers' URLs. Out: a `RouterProcess` on loopback. `installation`
finds the project's package, one module per project (`vllm_router`, `sglang_router`) has its flags,
and `process` starts, watches and stops it.
"""
