"""What a cell runs on. In: a `Job`. Out: records of its turns and events, and a summary."""
