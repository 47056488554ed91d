"""Scheduling policies, one file each: pure decisions on plain values (`base.Policy`).

vLLM imports this folder, so it uses the standard library only.
"""
