"""Reports of runs: what `trl-pods report` shows, as numbers, pictures, examples and a page."""
