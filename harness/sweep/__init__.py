"""A sweep. In: settings. Out: a plan, which is checked before anything runs, and its run folder."""
