"""Qwen2.5 decode on JAX with the execution state cut by coordinate over several nodes."""
