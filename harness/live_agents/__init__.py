"""Runs real agents as the load. In: a `Job` with an agent plan. Out: records of their turns."""
