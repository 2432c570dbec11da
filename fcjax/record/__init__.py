"""What a run leaves behind: its job, the lines of its passes, certificates, and summaries."""
