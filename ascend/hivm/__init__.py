"""Executes scheduled kernels (local addresses, pipes, flags) on this machine and finds races among pipes and cores."""
