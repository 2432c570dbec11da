"""Running it: audited programs, the decode loop, and parity with the reference."""
