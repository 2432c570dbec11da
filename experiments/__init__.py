"""Programs: one experiment a file, each with its command, cost and expected outcome."""
