"""What a run writes and a report reads: the documents of a run folder, each defined once."""
