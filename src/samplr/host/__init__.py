"""Training where the world is not written in JAX: simulators in worker processes, all else compiled as ever."""
