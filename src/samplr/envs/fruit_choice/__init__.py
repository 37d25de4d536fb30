"""Stochastic Fruit Choice: rooms behind locked doors, and at their end a choice between two fruits."""

from samplr.envs.fruit_choice.world import FruitChoice

__all__ = ["FruitChoice"]
