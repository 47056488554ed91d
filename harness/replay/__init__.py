"""Replays programs in virtual time (`virtual`) or against live servers (`live`).

In: programs, their arrivals, an engine or servers. Out: a `TurnRecord` per turn and a summary.
`schedule` decides when each turn is due. `live_router` asks a router which live server gets it,
`completion` and `http` send it there.
"""
