"""Models for vLLM.

In: a model's name or folder. Out: a folder that vLLM loads offline, its flags, and its KV size.
"""
