"""vLLM's own scheduler in virtual time, with the interface of the engine in `servers.sim`."""
