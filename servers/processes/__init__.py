"""Child processes that end when their parent does, however it ends."""
