"""A softmax's scale in base 2, in which the kernels exponentiate."""

from __future__ import annotations

import math

_LOG2_E = math.log2(math.e)
_MIN_SCALE = 2.0**-126  # stands for 0, whose product with a masked score of −∞ would be NaN


def in_base_2(sm_scale: float) -> tuple[float, float]:
    """The kernels' scale and coarse for `sm_scale`, which is at least 0."""
    scale = max(sm_scale * _LOG2_E, _MIN_SCALE) if sm_scale == sm_scale else sm_scale
    coarse = math.ldexp(1.0, math.frexp(scale)[1]) if math.isfinite(scale) else scale
    return scale, coarse
