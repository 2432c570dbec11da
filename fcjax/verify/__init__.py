"""Checking a recorded run again, from its files and by computing steps anew."""
