"""Compiled programs as data: XLA's parser behind one door."""
