"""Models for vLLM. In: a model name. Out: a folder that vLLM loads offline, and facts about it."""
