"""The formats a person may ask for a model to be kept in. How a number lies in one, `trivet.base.dtypes` says.

The command line takes its choices from here, so nothing heavy is imported.
"""

from __future__ import annotations

from typing import Literal

ModelFormat = Literal["bfloat16", "float32"]  # of weights and KV cache
MatrixFormat = Literal["int8"]  # of the matrices a token is multiplied with, where it is another
KvFormat = Literal["bfloat16", "int8"]  # of the KV cache, where it is another
