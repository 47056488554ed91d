"""Models: the properties that step times and KV memory depend on, from their config.json.

In: the name of a listed model (`listed.json`), or a config.json. Out: `shape.Model`.
"""
