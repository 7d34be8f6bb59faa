"""A CANN on host memory: the unmodified torch_npu wheel runs over it, on no NPU.

It computes the operators of table.py on the CPU and keeps memory, streams, events and captured graphs as a device
would, but lazily, so that a missing wait always shows. What it does not emulate is refused by name. It says nothing of
aclnn's own argument checks, of the device's rounding or of time; collectives and random numbers are not emulated.
"""
