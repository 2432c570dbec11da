"""What can be known of a value: coordinates, ancestry, and the caller's roles."""
