"""Executes scheduled vector kernels (UB addresses, pipes, flags) on this machine and finds races among the pipes."""
