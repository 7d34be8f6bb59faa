"""Our own kernels, one source for triton-ascend and plain Triton. Importing any of them needs `triton`.

Nothing imports it but what was asked for a device that runs them, and the proofs under `ascend/lower`.
"""
