"""What only `make` calls: generators of pages and of shipped data. Not in the wheel."""
