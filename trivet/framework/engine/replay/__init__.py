"""Public traces of requests, run through the real scheduler on a device whose clock is simulated."""
