"""What a study is: methods to train in one world, exams for their students, and a report from the numbers."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from matplotlib.figure import Figure
from rich.table import Table

from samplr.config import Config, default_config
from samplr.errors import SamplrError
from samplr.reproduce.records import Row, at_equal_updates, at_the_end
from samplr.student.networks import ActorCritic

LINES_PER_SNAPSHOT = 5
"""Lines of metrics between two snapshots of the students."""

Basis = Literal["steps", "gradient updates"]
BASES: tuple[Basis, ...] = ("steps", "gradient updates")
"""All methods are compared after as many steps, and when they have learned from as many rollouts."""

OWN_SETTINGS = ("seeds", "first_seed", "steps", "gradient_updates", "log_every")
"""What the study itself sets."""


@dataclass(frozen=True)
class Variant:
    """A method as a study trains it."""

    method: str
    title: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Dotted names of configuration fields, and their values where they are not the environment's defaults."""
    base: str = ""
    """For a variant with settings of the user's (`--set`), the study's own variant that it was made from."""


Examiner = Callable[[ActorCritic, Callable[[], None]], list[Row]]
"""Takes students and a function to call after each part; gives rows whose `seed` is a student's place in the batch."""


class Exam(Protocol):
    """An evaluation of students, in parts of equal work."""

    @property
    def name(self) -> str:
        """What its file is called."""

    @property
    def at(self) -> Literal["every", "ends", "last"]:
        """Whether all snapshots take it, the last and the one at equal gradient updates, or the last alone."""

    def parts(self, config: Config) -> int:
        """In how many parts a batch of students takes it."""

    def prepare(self, config: Config, run: Path) -> Examiner:
        """Make ready to examine the students of a configuration, of which this is the run folder."""


@dataclass(frozen=True)
class Data:
    """The numbers of a study: its variants, and the rows of its training and exams by name."""

    variants: Mapping[str, Variant]
    rows: Mapping[str, Sequence[Row]]
    diverged: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """By variant, the seeds with numbers that are not finite, which are not among the rows."""

    def of(self, name: str) -> Sequence[Row]:
        """The rows of an exam, or of the `training`; none if there are none yet."""
        return self.rows.get(name, ())

    def setting(self, name: str) -> str:
        """What `--set` was for a variant: the rest of its name; nothing for the study's own."""
        base = self.variants[name].base
        return name.removeprefix(base).removeprefix("-") if base else ""

    def only(self, names: Collection[str]) -> "Data":
        """Some of the study's variants, with whatever settings of the user's; the rows are all there."""
        kept = {name: variant for name, variant in self.variants.items() if (variant.base or name) in names}
        return Data(kept, self.rows, self.diverged)


@dataclass(frozen=True)
class Report:
    """What a study has shown."""

    results: dict[str, Any]
    tables: Sequence[Table]
    tests: Sequence[Table]
    figures: Mapping[str, Figure]


@dataclass(frozen=True)
class Study:
    """One experiment of the paper."""

    name: str
    about: str
    """What it asks, in a sentence."""
    env: str
    variants: Mapping[str, Variant]
    exams: Sequence[Exam]
    training_figures: Sequence[str]
    """Which metrics of the training are kept."""
    report: Callable[[Data], Report]
    steps: int
    seeds: int
    batch: int = 10
    """How many seeds are trained side by side at most."""
    snapshots: int = 10
    """How many times along training the students are kept."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Changes to the environment's defaults that all variants share."""

    def config(self, variant: Variant, *, steps: int, seeds: int = 1, first_seed: int = 0) -> Config:
        """The configuration of some seeds of a variant."""
        changes = {name.replace(".", "__"): value for name, value in {**self.settings, **variant.changes}.items()}
        own = set(changes) & set(OWN_SETTINGS)
        if own:
            raise SamplrError(f"--set {min(own)}: the study sets this itself; use --seeds, --first-seed or --steps")
        for name in {"env", "method"} & set(changes):
            raise SamplrError(f"--set {name}: a study has its own; name a field, as env.alpha=2 or teacher=plr")
        config = default_config(self.env, variant.method, **changes, steps=steps)
        every = -(-config.updates // (self.snapshots * LINES_PER_SNAPSHOT))
        return default_config(
            self.env, variant.method, **changes, steps=steps, seeds=seeds, first_seed=first_seed, log_every=every
        )


def with_settings(variants: Mapping[str, Variant], settings: Mapping[str, Any]) -> dict[str, Variant]:
    """Variants with further settings, under names of their own."""
    if not settings:
        return dict(variants)
    label = ", ".join(f"{name.split('.')[-1]}={value}" for name, value in settings.items())
    # Letters, digits, dots and dashes: a name is also a folder's.
    suffix = "".join(c if c.isalnum() or c in "._" else "-" for c in "-".join(f"{n}-{v}" for n, v in settings.items()))
    return {
        f"{name}-{suffix}": Variant(
            variant.method, f"{variant.title}, {label}", {**variant.changes, **settings}, base=name
        )
        for name, variant in variants.items()
    }


def groups(data: Data, rows: Iterable[Row]) -> dict[str, dict[str, list[Row]]]:
    """Rows by what `--set` was, and then by the study's own name of their variant."""
    found: dict[str, dict[str, list[Row]]] = {}
    for row in rows:
        name = row["variant"]
        own = data.variants[name].base or name
        found.setdefault(data.setting(name), {}).setdefault(own, []).append(row)
    return found


def compared_at(basis: Basis, data: Data, rows: Sequence[Row]) -> list[Row]:
    """The rows that variants are compared by, within each of the user's settings: at equal updates, all are judged when
    they had learned as often as the slowest among them in the end, and settings may change how often that is.
    """
    if basis == "steps":
        return at_the_end(rows)
    by_setting: dict[str, list[Row]] = {}
    for row in rows:
        by_setting.setdefault(data.setting(row["variant"]), []).append(row)
    return [row for of in by_setting.values() for row in at_equal_updates(of)]
