"""Signatures of torch_npu's operators by version, and the proof that every call Trivet makes of them fits them all."""
