"""What a student makes of evidence: how it drives when it is told the truth, and when it is told another rate of ice.

    python tools/told_otherwise.py results/sketch/policies/fixed_fictitious_evidence.npz --rates 0.3

The student was trained with `env.show_evidence`. In the rows after the first of a condition the counts of icy and dry
tiles are as many as in truth together, and in the given proportion. Who does better so has learned to go by counts, and
has not met those of this road. How much worse others do is what a false belief about ice costs them.
"""

import argparse
import dataclasses

import jax.numpy as jnp

import samplr
from samplr.envs.api import Suite
from samplr.envs.black_ice import BlackIce
from samplr.errors import SamplrError


def told_otherwise(env: BlackIce, rate: float) -> BlackIce:
    """The same world, in which drivers are told that tiles were icy at this rate."""

    class Otherwise(type(env)):  # type: ignore[misc]
        def observe(self, world, state):  # type: ignore[no-untyped-def]
            seen = super().observe(world, state)
            revealed = jnp.sum(seen["evidence"])
            return {**seen, "evidence": jnp.stack([rate * revealed, (1 - rate) * revealed])}

    return Otherwise(**{field.name: getattr(env, field.name) for field in dataclasses.fields(env)})


def main() -> None:
    """Print a row for each condition and way of telling."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("policies", help="a run folder or a file of policies; all of its students play")
    arguments.add_argument("--rates", type=float, nargs="+", default=[0.3], help="what they are told instead")
    arguments.add_argument("--episodes", type=int, default=100)
    options = arguments.parse_args()
    run = samplr.load(options.policies)
    if not isinstance(run.env, BlackIce) or not run.env.show_evidence:
        raise SamplrError("this asks what a driver makes of the evidence: give it one that is told, on black ice")
    for condition, suite in _conditions(run.env).items():
        others = {f"a rate of {rate:g}": told_otherwise(run.env, rate) for rate in options.rates}
        for way, env in {"the truth": run.env, **others}.items():
            found = samplr.evaluate(env, run.networks, suite, episodes=options.episodes)[condition]
            returns = found.figures["return"].mean(axis=1)
            print(
                f"{condition:12} told {way:16} {returns.mean():7.1f}  by seed: {', '.join(f'{r:.0f}' for r in returns)}"
            )


def _conditions(env: BlackIce) -> dict[str, Suite]:
    """New tracks under P̄, without ice, and with much."""
    fixed = env.suites()["fixed_rates"]
    return {"ground_truth": env.suites()["ground_truth"], **{q: {q: fixed[q]} for q in ("q=0", "q=0.3")}}


if __name__ == "__main__":
    main()
