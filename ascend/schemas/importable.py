"""Importing this module makes `import torch_npu` work in this process, whatever CANN the machine has."""

from ascend.schemas.stubs import load

load()
