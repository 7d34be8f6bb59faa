"""What a pasted log, traceback or `npu-smi` output tells: its first error, the layer, the cause where one is known.

What is known stands in tables under `data`; the code only reads a text and looks things up.
"""
