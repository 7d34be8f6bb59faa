"""Every aclnn operator of the fake agrees with plain torch, called through the unmodified torch_npu wheel.

A case is a computation on a device: run on the CPU it is the truth, run on the NPU it is the test.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

if "FAKECANN" not in os.environ:
    pytest.skip("runs over the fake CANN: python -m ascend.fakecann.run pytest …", allow_module_level=True)

import torch
import torch_npu
from torch.nn import functional

from ascend.fakecann import counters
from ascend.fakecann.evidence import compared
from ascend.fakecann.table import OPERATORS

Compute = Callable[[str], torch.Tensor | tuple[torch.Tensor, ...]]


def _random(*sizes: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(seed)).to(dtype)


X, Y = _random(4, 6), _random(4, 6, seed=1)
POSITIVE = X.abs() + 0.1
CUBE, CUBE2 = _random(3, 4, 5), _random(3, 5, 2, seed=1)
ROWS = torch.tensor([2, 0, 3, 2])
SQUARE = _random(6, 6)

_NUMBERS: dict[str, Compute] = {
    "aclnnAdd": lambda d: torch.add(X.to(d), Y.to(d), alpha=2),
    "aclnnInplaceAdd": lambda d: X.to(d, copy=True).add_(Y.to(d), alpha=3),
    "aclnnAdds": lambda d: X.to(d) + 2.5,
    "aclnnInplaceAdds": lambda d: X.to(d, copy=True).add_(2.5),
    "aclnnSub": lambda d: torch.sub(X.to(d), Y.to(d), alpha=2),
    "aclnnInplaceSub": lambda d: X.to(d, copy=True).sub_(Y.to(d)),
    "aclnnSubs": lambda d: X.to(d) - 2.5,
    "aclnnInplaceSubs": lambda d: X.to(d, copy=True).sub_(2.5),
    "aclnnMul": lambda d: X.to(d) * Y.to(d)[:1],
    "aclnnInplaceMul": lambda d: X.to(d, copy=True).mul_(Y.to(d)),
    "aclnnMuls": lambda d: X.to(d) * 3,
    "aclnnInplaceMuls": lambda d: X.to(d, copy=True).mul_(3),
    "aclnnDiv": lambda d: X.to(d) / Y.to(d),
    "aclnnInplaceDiv": lambda d: X.to(d, copy=True).div_(Y.to(d)),
    "aclnnDivs": lambda d: X.to(d) / 3,
    "aclnnInplaceDivs": lambda d: X.to(d, copy=True).div_(3),
    "aclnnAbs": lambda d: X.to(d).abs(),
    "aclnnCos": lambda d: X.to(d).cos(),
    "aclnnExp": lambda d: X.to(d).exp(),
    "aclnnNeg": lambda d: -X.to(d),
    "aclnnRsqrt": lambda d: POSITIVE.to(d).rsqrt(),
    "aclnnSigmoid": lambda d: X.to(d).sigmoid(),
    "aclnnSilu": lambda d: functional.silu(X.to(d)),
    "aclnnSin": lambda d: X.to(d).sin(),
    "aclnnSqrt": lambda d: POSITIVE.to(d).sqrt(),
    "aclnnIsFinite": lambda d: (X / 0).to(d).isfinite(),
    "aclnnLogicalNot": lambda d: (X > 0).to(d).logical_not(),
    "aclnnEqTensor": lambda d: ROWS.to(d) == ROWS.flip(0).to(d),
    "aclnnEqScalar": lambda d: ROWS.to(d) == 2,
    "aclnnNeTensor": lambda d: ROWS.to(d) != ROWS.flip(0).to(d),
    "aclnnNeScalar": lambda d: ROWS.to(d) != 2,
    "aclnnLtTensor": lambda d: X.to(d) < Y.to(d),
    "aclnnLtScalar": lambda d: X.to(d) < 0.2,
    "aclnnLeTensor": lambda d: X.to(d) <= Y.to(d),
    "aclnnLeScalar": lambda d: ROWS.to(d) <= 2,
    "aclnnGtTensor": lambda d: X.to(d) > Y.to(d),
    "aclnnGtScalar": lambda d: X.to(d) > 0.2,
    "aclnnGeTensor": lambda d: X.to(d) >= Y.to(d),
    "aclnnGeScalar": lambda d: ROWS.to(d) >= 2,
    "aclnnPowTensorScalar": lambda d: X.to(d).pow(3),
    "aclnnFloorDivides": lambda d: (ROWS - 2).to(d) // 3,
    "aclnnRemainderTensorScalar": lambda d: (ROWS - 2).to(d) % 3,
    "aclnnMaximum": lambda d: torch.maximum(X.to(d), Y.to(d)),
    "aclnnMinimum": lambda d: torch.minimum(X.to(d), Y.to(d)),
    "aclnnSWhere": lambda d: torch.where((X > 0).to(d), X.to(d), Y.to(d)),
    "aclnnInplaceMaskedFillScalar": lambda d: X.to(d, copy=True).masked_fill_((X > 0).to(d), -7),
}

_MOVES: dict[str, Compute] = {
    "aclnnInplaceCopy": lambda d: CUBE.to(d).transpose(0, 2).contiguous(),
    "aclnnCast": lambda d: X.to(torch.bfloat16) if d == "cpu" else torch_npu.npu_dtype_cast(X.to(d), torch.bfloat16),
    "aclnnInplaceZero": lambda d: X.to(d, copy=True).zero_(),
    "aclnnInplaceOne": lambda d: torch.ones(3, 2, device=d),
    "aclnnInplaceFillScalar": lambda d: torch.full((3, 2), 2.5, device=d),
    "aclnnInplaceFillTensor": lambda d: X.to(d, copy=True).fill_(Y[0, 0].to(d)),
    "aclnnArange": lambda d: torch.arange(2, 17, 3, device=d),
    "aclnnCat": lambda d: torch.cat([X.to(d), Y.to(d)[:, 1:4]], dim=1),
    "aclnnIndex": lambda d: X.to(d)[ROWS.to(d)],
    "aclnnIndexSelect": lambda d: X.to(d).index_select(1, ROWS.to(d)),
    "aclnnIndexPutImpl": lambda d: X.to(d, copy=True).index_put_((ROWS[:3].to(d),), Y.to(d)[:3]),
    "aclnnEmbedding": lambda d: functional.embedding(ROWS.to(d), X.to(d)),
    "aclnnGather": lambda d: X.to(d).gather(0, ROWS.view(1, 4).to(d)),
}

_REDUCTIONS: dict[str, Compute] = {
    "aclnnMean": lambda d: X.to(d).mean(-1, keepdim=True),
    "aclnnReduceSum": lambda d: CUBE.to(d).sum((0, 2)),
    "aclnnCumsum": lambda d: X.to(d).cumsum(1),
    "aclnnMax": lambda d: X.to(d).max(),
    "aclnnAmax": lambda d: X.to(d).amax(1),
    "aclnnArgMax": lambda d: X.to(d).argmax(-1),
    "aclnnAll": lambda d: (X > -1).to(d).all(1),
    "aclnnAny": lambda d: (X > 1).to(d).any(1),
    "aclnnTopkV2": lambda d: tuple(X.to(d).topk(3, dim=1)),
    "aclnnSort": lambda d: tuple(X.to(d).sort(dim=0, descending=True, stable=True)),
    "aclnnSoftmax": lambda d: X.to(d).softmax(-1),
}

_PRODUCTS: dict[str, Compute] = {
    "aclnnMm": lambda d: torch.mm(X.to(d), Y.to(d).t()),
    "aclnnMatmul": lambda d: torch.matmul(CUBE.to(d), CUBE2.to(d)[0]),
    "aclnnBatchMatMul": lambda d: torch.bmm(CUBE.to(d), CUBE2.to(d)),
    "aclnnAddmm": lambda d: torch.addmm(X.to(d), X.to(d), SQUARE.to(d), beta=2, alpha=3),
}

PLAIN = _NUMBERS | _MOVES | _REDUCTIONS | _PRODUCTS


@pytest.mark.parametrize("operator", PLAIN)
def test_an_operator_agrees_with_plain_torch(operator: str) -> None:
    counters.reset()
    result = PLAIN[operator]("npu")
    moved = tuple(part.cpu() for part in result) if isinstance(result, tuple) else result.cpu()

    assert operator in counters.read().launches
    torch.testing.assert_close(moved, PLAIN[operator]("cpu"))
    compared(operator)


def test_every_operator_of_the_table_has_a_case() -> None:
    from tests.ascend.test_fakecann_fused import FUSED

    assert sorted(operator.name for operator in OPERATORS) == sorted([*PLAIN, *FUSED])
