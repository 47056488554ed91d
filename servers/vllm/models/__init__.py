"""Models for vLLM.

In: a model's name or folder. Out: a folder that vLLM loads offline, and facts about the model.
"""
