"""Runs real agents as the load.

In: servers, and a `Job` with an agent plan. Out: a `TurnRecord` per turn, `programs.jsonl`,
predictions and a summary. `run` starts one process per program behind a gateway.
"""
