"""A pool of simulators in worker processes, which answer or are reported: it never hangs, and leaves none behind."""

import contextlib
import functools
import multiprocessing
import os
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

from samplr.envs.gymnasium import GymnasiumEnvironment
from samplr.errors import SamplrError
from samplr.host.crew import Begun, Crew, Order, Outcome, Start

_KEPT = "the last checkpoint is intact, and --resume goes on from it"


class SimulatorPool:
    """Simulators, spread evenly over processes of Gymnasium's vector environment, which start when first needed.

    **Arguments:**

    - `simulators`: how many.
    - `twins`: whether each needs a twin for fictitious steps.
    - `processes`: how many processes; 0 to run them all in this one.
    - `patience`: how many seconds a call may take.
    """

    def __init__(
        self, env: GymnasiumEnvironment, simulators: int, *, twins: bool, processes: int, patience: float
    ) -> None:
        self._env, self._simulators, self._twins = env, simulators, twins
        self._processes, self._patience = min(processes, simulators), patience
        self._vector: Any = None

    def begin(self, start: Start) -> Begun:
        """Begin an episode in every simulator."""
        begun: Begun = self._call("begin", start)
        return begun

    def turn(self, order: Order) -> Outcome:
        """Take a step in every simulator."""
        outcome: Outcome = self._call("turn", order)
        return outcome

    def close(self) -> None:
        """End the processes; the next call starts new ones."""
        if self._vector is None:
            return
        vector, self._vector = self._vector, None
        try:
            vector.close()
        except (EOFError, OSError):  # one has died since it was last asked
            _give_up(vector)

    def _call(self, method: str, batch: Any) -> Any:
        if self._vector is None:
            self._vector = self._start()
        replies = self._replies(method, batch)
        for reply in replies:
            if isinstance(reply, SamplrError):
                self.close()
                raise reply
        names = [sorted(reply.real.metrics) for reply in replies if isinstance(reply, Outcome)]
        if any(name != names[0] for name in names):
            raise SamplrError(f"simulators give metrics of different names: {names}")
        return jax.tree.map(lambda *leaves: np.concatenate(leaves), *replies)

    def _replies(self, method: str, batch: Any) -> tuple[Any, ...]:
        """What every crew has to say, or an error that says what became of it."""
        vector = self._vector
        if not self._processes:
            return tuple(vector.call(method, batch))
        try:
            vector.call_async(method, batch)
            return tuple(vector.call_wait(timeout=self._patience))
        except multiprocessing.TimeoutError:
            problem = f"a worker process has not answered for {self._patience:g} s (--patience-seconds)"
        except (EOFError, OSError):
            problem = f"a worker process died ({_how_it_died(vector)})"
        except BaseException:  # such as the interrupt key: their answers would be taken for the next call's
            self._abandon()
            raise
        self._abandon()
        raise SamplrError(f"{problem}: {_KEPT}")

    def _abandon(self) -> None:
        vector, self._vector = self._vector, None
        if self._processes:
            _give_up(vector)

    def _start(self) -> Any:
        shares = np.array_split(np.arange(self._simulators), max(self._processes, 1))
        crews = [
            functools.partial(Crew, self._env, slice(int(share[0]), int(share[-1]) + 1), twins=self._twins)
            for share in shares
        ]
        if not self._processes:
            return SyncVectorEnv(crews)
        before = multiprocessing.active_children()
        with _environment_of_workers():
            try:
                # A process with threads, as any with JAX, cannot safely be forked.
                return AsyncVectorEnv(crews, shared_memory=False, context="spawn")
            except (EOFError, OSError) as error:
                _kill([process for process in multiprocessing.active_children() if process not in before])
                raise SamplrError(
                    "a worker process died while it started: the environment must be in a module that can be "
                    'imported, and a program that trains on it has its code under `if __name__ == "__main__":`'
                ) from error


@contextlib.contextmanager
def _environment_of_workers() -> Iterator[None]:
    """Processes that start in here leave the accelerator alone."""
    name = "JAX_PLATFORMS"
    before = os.environ.get(name)
    os.environ[name] = "cpu"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _how_it_died(vector: AsyncVectorEnv) -> str:
    for process in vector.processes:
        process.join(timeout=1.0 if not process.is_alive() else 0.1)
    codes = [process.exitcode for process in vector.processes if process.exitcode]
    return f"by signal {-codes[0]}" if codes and codes[0] < 0 else f"exit status {codes[0] if codes else 'unknown'}"


def _kill(processes: Sequence[Any]) -> None:
    """End processes, whatever they are doing, and wait until they are gone."""
    for process in processes:
        process.kill()
    for process in processes:
        process.join()


def _give_up(vector: AsyncVectorEnv) -> None:
    """End a vector environment that no longer answers; its own way to close would wait for it."""
    _kill(vector.processes)
    for pipe in vector.parent_pipes:
        if pipe is not None:
            pipe.close()
    vector.closed = True
