"""Runs routers of other projects in front of vLLM servers, as baselines for ours.

In: a `ForeignRouter` and the servers' URLs. Out: a `RouterProcess` on loopback. `installation`
finds the project's package, `projects` and `vllm_router` have the flags of each, and `process`
starts, watches and stops it.
"""
