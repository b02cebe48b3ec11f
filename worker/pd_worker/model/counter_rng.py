"""Random numbers that are a function of a counter: no state, the same in any batch, any process.

The hash is the finalizer of SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number
generators, 2014). numpy only.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pd_worker.core.batch import Ints

Words = npt.NDArray[np.uint64]

_STEP, _MIX_1, _MIX_2 = (
    np.uint64(word) for word in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)


def mix(words: Words) -> Words:
    """A well mixed word for each word; a bijection."""
    words = words + _STEP
    words = (words ^ (words >> np.uint64(30))) * _MIX_1
    words = (words ^ (words >> np.uint64(27))) * _MIX_2
    return words ^ (words >> np.uint64(31))


def uniforms(seeds: Ints, positions: Ints) -> npt.NDArray[np.float64]:
    """For each row a number in [0, 1) that depends on nothing but its seed and position."""
    words = mix(mix(seeds.astype(np.uint64)) + positions.astype(np.uint64))
    return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53
