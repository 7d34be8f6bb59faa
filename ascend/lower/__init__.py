"""Compiles our Triton kernels for an Ascend, and runs what was lowered on this machine, with no Ascend in sight."""
