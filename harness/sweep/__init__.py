"""A sweep. In: settings. Out: a plan, checked before anything runs, and its filled run folder."""
