"""The student: PPO, its advantages, its distributions and its networks."""
