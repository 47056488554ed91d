"""The load of a sweep. In: settings. Out: programs or agent tasks, and their arrival times."""
