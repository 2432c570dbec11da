"""What things cost: timings, peers, sweeps, and transformers on torch beside it."""
