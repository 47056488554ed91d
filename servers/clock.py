"""The unit of the engines' clocks. Policies and records see seconds."""

PS_PER_S = 10**12
"""Both engines count whole picoseconds, so that sums of step times are exact."""
