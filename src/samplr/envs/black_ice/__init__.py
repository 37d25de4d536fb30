"""Black-Ice Car Racing: drive a car of the real simulator's physics on tracks with hidden ice."""

from samplr.envs.black_ice.sketch import SketchedBlackIce
from samplr.envs.black_ice.world import BlackIce

__all__ = ["BlackIce", "SketchedBlackIce"]
