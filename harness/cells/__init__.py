"""One cell on disk and in a process: its folder, its job, and the workers that run cells."""
