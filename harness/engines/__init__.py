"""Backends that run a cell. In: a `Job`. Out: records of its turns and events, and a summary."""
