"""`samplr reproduce theory`: Remark 1 and Theorem 1 as measurements, on icy road, whose solution is known.

ε-Bayes optimality asks for little regret to the Bayes-optimal policy on average under P̄; *robust* ε-Bayes optimality
asks for little at every level and history. The paper's theorem promises the latter of SAMPLR where the teacher finds
the levels of greatest regret, so there are variants whose teacher is told the regret instead of guessing it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from rich import box
from rich.table import Table

from samplr.compiling import jit
from samplr.config import Config
from samplr.envs.icy_road import IcyRoad, solution
from samplr.envs.icy_road.world import EVALUATED_RATES
from samplr.reproduce import figures
from samplr.reproduce.comparisons import Claim, cell, cell_of_orders, claims_tables, estimate, tested
from samplr.reproduce.folder import TRAINING
from samplr.reproduce.records import Row, scores
from samplr.reproduce.studies import BASES, Data, Examiner, Report, Study, Variant, compared_at, groups
from samplr.student.networks import ActorCritic

SCORES = {"": "positive_value_loss", "oracle": "exact_regret", "grounded": "grounded_regret"}
"""What the teacher goes by: its own guess; the regret to a driver told the ice; the regret to the Bayes-optimal one."""

_METHODS = {
    "dr": Variant("dr", "DR"),
    "plr": Variant("plr", "PLR"),
    "robust_plr": Variant("robust_plr", "PLR⊥"),
    "naive": Variant("naive", "naive"),
    "samplr": Variant("samplr", "SAMPLR"),
    "samplr_m4": Variant("samplr", "SAMPLR M=4", {"fictitious.samples": 4}),
    "samplr_m16": Variant("samplr", "SAMPLR M=16", {"fictitious.samples": 16}),
    "samplr_exact": Variant("samplr", "SAMPLR M=∞", {"fictitious.samples": "exact"}),
}


def _variants() -> dict[str, Variant]:
    """Every method under every score; DR has no use for one."""
    found = {}
    for score, field in SCORES.items():
        for name, variant in _METHODS.items():
            if score == "":
                found[name] = variant
            elif name != "dr":
                changes = {**variant.changes, "replay.score": field}
                found[f"{name}_{score}"] = Variant(variant.method, f"{variant.title}, {score}", changes)
    return found


@dataclass(frozen=True)
class ExactExam:
    """Ask students for what they would do at every history, and judge it by the exact solution."""

    name: str = "exact"
    at: Literal["every", "ends"] = "every"

    def parts(self, config: Config) -> int:
        """All in one."""
        return 1

    def prepare(self, config: Config, run: Path) -> Examiner:
        """Compile the judgement."""
        env = config.env
        assert isinstance(env, IcyRoad)
        judged = jit(jax.vmap(lambda network: judge(env, network, discount=config.student.discount)))

        def examine(networks: ActorCritic, tick: Callable[[], None]) -> list[Row]:
            found = {name: np.asarray(values, float) for name, values in judged(networks).items()}
            tick()
            runs = len(found["utility"])
            return [{"seed": run, **{name: float(v[run]) for name, v in found.items()}} for run in range(runs)]

        return examine


def judge(env: IcyRoad, network: ActorCritic, *, discount: float) -> dict[str, Array]:
    """What a student is worth, exactly."""
    table, best = solution.tabulate(env, network), solution.bayes_optimal(env)
    regret = solution.history_regret(env, table.fast)
    roads = (jnp.arange(2**env.segments)[:, None] >> jnp.arange(env.segments)) & 1 == 1
    of_level = jax.vmap(lambda bits: solution.grounded_level_regret(env, table.fast, bits))(roads)
    return {
        "utility": solution.utility(env, table.fast)[0],
        "share": solution.utility(env, table.fast)[0] / solution.utility(env, best)[0],
        "regret": regret[0],
        "worst_level_regret": jnp.max(of_level),
        "worst_history_regret": jnp.max(regret),
        **{f"return_q={q:g}": solution.return_at_rate(env, table.fast, q) for q in EVALUATED_RATES},
        "value_rmse": solution.value_error(env, table, discount=discount),
    }


def claims() -> list[Claim]:
    """That the ungrounded student is the worst under P̄; and that told the regret, SAMPLR is the safest everywhere."""
    others = [name for name in _METHODS if name != "robust_plr"]
    shifted = [Claim("PLR⊥ is below all others", "utility", "robust_plr", other, "less") for other in others]
    safest = [
        Claim(f"SAMPLR is safest, {told}", "worst_history_regret", a, b, "less")
        for score, told in (("oracle", "told the exact regret"), ("grounded", "told the regret to the Bayes optimum"))
        for a in (f"samplr_{score}", f"samplr_m4_{score}", f"samplr_m16_{score}", f"samplr_exact_{score}")
        for b in ("dr", f"naive_{score}")
    ]
    return shifted + safest


FIGURES = ("utility", "share", "regret", "worst_level_regret", "worst_history_regret", "return_q=0.8", "value_rmse")


def report(data: Data) -> Report:
    """The table, the tests and the figure."""
    exact = data.of("exact")
    results: dict[str, Any] = {"table": {}, "claims": []}
    for basis in BASES:
        chosen = compared_at(basis, data, exact)
        for setting, variants in groups(data, chosen).items():
            results["claims"] += [{**found, "setting": setting} for found in tested(claims(), variants, basis)]
        results["table"][basis] = _table(data, chosen)
    tables = [_rich_table(data, basis, results["table"][basis]) for basis in BASES]
    return Report(results, tables, claims_tables(results["claims"], 2), {"theory": figures.theory(data)})


def _table(data: Data, chosen: Sequence[Row]) -> dict[str, dict[str, Any]]:
    table = {}
    for variant in data.variants:
        rows = [row for row in chosen if row["variant"] == variant]
        if not rows:
            continue
        training = [row for row in data.of(TRAINING) if row["variant"] == variant]
        ice = scores([row for row in training if row["update"] <= rows[0]["update"]], "shift/ice/real_mean")
        table[variant] = {
            "steps": rows[0]["steps"],
            "gradient_updates": rows[0]["gradient_updates"],
            **{figure: estimate(scores(rows, figure)) for figure in FIGURES},
            "ice_trained": estimate(ice),
        }
    return table


def _rich_table(data: Data, basis: str, rows: Mapping[str, Mapping[str, Any]]) -> Table:
    table = Table(
        title=f"Icy road at equal {basis}: mean ± standard error over seeds", box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1)
    )
    for column in ("method", "updates", "of optimum", "regret", "worst level", "worst history", "ice"):
        table.add_column(column, justify="left" if column == "method" else "right", overflow="fold")
    for variant, row in rows.items():
        table.add_row(
            data.variants[variant].title,
            f"{row['gradient_updates']}",
            f"{row['share']['mean']:.1%}",
            *[cell_of_orders(row[name]) for name in ("regret", "worst_level_regret", "worst_history_regret")],
            cell(row["ice_trained"], 2),
        )
    return table


THEORY = Study(
    name="theory",
    about="Remark 1 and Theorem 1, measured exactly on icy road: what a shift costs, and what grounding gives back.",
    env="icy_road",
    variants=_variants(),
    exams=(ExactExam(),),
    training_figures=("new/return", "replay/return", "shift/ice/real_mean", "shift/ice/met_mean"),
    report=report,
    steps=250_000,
    seeds=10,
    snapshots=20,
)
