"""Stochastic Fruit Choice: rooms behind locked doors, and at their end a choice between two fruits."""
