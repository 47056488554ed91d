"""Engines and what decides in them: policies, profiles, virtual time, and vLLM with its plug-in."""
