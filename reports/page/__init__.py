"""The HTML report of a run. In: everything known of it. Out: one offline page."""
