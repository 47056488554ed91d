"""What policies learn while they run: tool times, queueing delays, turn counts, and TTLs."""
