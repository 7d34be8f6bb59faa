"""Many times in a few figures."""

from __future__ import annotations

from array import array

import numpy as np

QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


def spread(seconds: array[float]) -> dict[str, float]:
    """Their quantiles and standard deviation, "p50", "p90", "p99", "sd"; of none, 0."""
    if not seconds:
        return dict.fromkeys([*QUANTILES, "sd"], 0.0)
    all_s = np.frombuffer(seconds, np.float64)
    found = np.quantile(all_s, list(QUANTILES.values()))
    return {**dict(zip(QUANTILES, map(float, found), strict=True)), "sd": float(all_s.std())}
