"""The configuration of a batch of runs: nested frozen dataclasses, each field documented where it is declared.

Where the paper reports a value for an environment, that environment's `defaults` hold it; the values here are those of
its car-racing experiment.
"""

import dataclasses
import math
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar

from samplr.envs import environment_name, make_environment
from samplr.envs.api import Environment
from samplr.errors import SamplrError, UnknownNameError
from samplr.teachers.fixed import levels_named
from samplr.teachers.scores import HINDSIGHT_SCORES

E = TypeVar("E", bound=Environment)

TeacherName = Literal["dr", "plr", "robust_plr", "fixed"]
GroundingName = Literal["none", "naive", "fictitious"]

METHODS: Mapping[str, tuple[TeacherName, GroundingName]] = {
    "dr": ("dr", "naive"),
    "plr": ("plr", "none"),
    "robust_plr": ("robust_plr", "none"),
    "naive": ("robust_plr", "naive"),
    "samplr": ("robust_plr", "fictitious"),
}
"""The named pairs of teacher and grounding."""


@dataclass(frozen=True)
class StudentConfig:
    """The PPO agent."""

    encoder: str = "mlp"
    """The network's encoder: `mlp`, or one of the environment's own."""
    hidden: tuple[int, ...] = (64, 64)
    """Sizes of the encoder's hidden layers."""
    memory: int = 0
    """Size of the LSTM; 0 for a student without memory."""
    sees_actions: bool = False
    """Whether a student with memory is told its last action: a history is one of actions, too."""
    informed_critic: bool = False
    """Whether the value, which only training uses, is told the hidden numbers of θ′: what is luck to the policy is not
    luck to its critic. Not with grounding `fictitious`, whose θ′ is another at every step."""
    head: int = 0
    """Size of a hidden layer before the policy and of another before the value; 0 for none."""
    policy_gain: float = 0.01
    """How much a fresh policy goes by what it observes. Little makes seeds more alike (Andrychowicz et al., 2020)."""
    learning_rate: float = 1e-4
    """Adam's learning rate."""
    adam_epsilon: float = 1e-5
    """Adam's ε."""
    discount: float = 0.99
    """γ."""
    gae_lambda: float = 0.9
    """λ of the generalised advantage estimator."""
    epochs: int = 3
    """Passes over each rollout."""
    minibatches: int = 4
    """Minibatches of each pass."""
    clip: float = 0.2
    """PPO's clip range."""
    clip_values: bool = False
    """Whether the value loss is clipped as well."""
    value_coefficient: float = 1.0
    """Weight of the value loss."""
    entropy_coefficient: float = 0.0
    """Weight of the entropy bonus."""
    max_gradient_norm: float = 0.5
    """Gradients are scaled down to this global norm."""
    normalise_returns: bool = True
    """Whether rewards are divided by the running standard deviation of the discounted return, and clipped at ten of
    them: rewards that are rare and of different sizes become equal."""
    normalise_advantages: bool = True
    """Whether advantages are normalised over each rollout."""


@dataclass(frozen=True)
class ReplayConfig:
    """The level replay of `plr` and `robust_plr`."""

    rate: float = 0.5
    """p: the probability that a rollout replays levels."""
    capacity: int = 500
    """K: how many levels the buffer holds."""
    fill: float = 0.5
    """Replay begins when enough new levels were presented to fill this share of the buffer."""
    score: str = "positive_value_loss"
    """`positive_value_loss`, `l1_value_loss`, `max_mc`, or an oracle of the environment's own."""
    prioritisation: Literal["rank", "power"] = "power"
    """How a score becomes a weight."""
    temperature: float = 1.0
    """β: weights are taken to the power 1/β."""
    staleness: float = 0.7
    """ρ: the share of the weight that goes by the time since a level was last scored."""


@dataclass(frozen=True)
class FictitiousConfig:
    """The transitions of grounding `fictitious`."""

    samples: int | Literal["exact"] = 1
    """M: how many posterior draws each TD error averages over (the paper: 1); `exact` for its expectation."""
    trace: Literal["full", "matched"] = "full"
    """`full` (the paper), or `matched`: advantages are passed on only over transitions that equal the real ones."""
    scores: Literal["fictitious", "real"] = "fictitious"
    """Which transitions a level's score is computed from. Whichever it is, the student learns from fictitious ones."""
    posterior: Literal["exact", "learned"] = "exact"
    """`exact`: the environment's own; `learned`: a network that learns it alongside the student (see `belief`)."""
    prior: Literal["known", "estimated"] = "known"
    """The prior of an exact posterior: `known`, or `estimated` from the new levels that a run has seen so far."""


@dataclass(frozen=True)
class BeliefConfig:
    """The network of a learned posterior. It has an encoder like the student's."""

    memory: int = 64
    """Size of the GRU."""
    bins: int = 32
    """Into how many equally likely bins each hidden number of θ′ is divided, at most."""
    learning_rate: float = 3e-3
    """Adam's learning rate."""
    epochs: int = 8
    """Gradient steps for each rollout of new levels."""


@dataclass(frozen=True)
class Config(Generic[E]):
    """Everything a batch of runs is made from."""

    env: E
    """The environment and its settings."""
    teacher: TeacherName = "robust_plr"
    """Who proposes levels."""
    presents: str = ""
    """For teacher `fixed`: the levels it proposes, as SUITE/CONDITION, or a whole SUITE (see `samplr list suites`)."""
    grounding: GroundingName = "fictitious"
    """Which transitions the student learns from."""
    student: StudentConfig = field(default_factory=StudentConfig)
    replay: ReplayConfig = field(default_factory=ReplayConfig)
    fictitious: FictitiousConfig = field(default_factory=FictitiousConfig)
    belief: BeliefConfig = field(default_factory=BeliefConfig)
    workers: int = 16
    """Levels in each rollout, one for each worker."""
    rollout: int = 125
    """Steps each worker takes in a rollout."""
    seeds: int = 1
    """How many runs are trained side by side."""
    first_seed: int = 0
    """The seed of the first of them."""
    steps: int = 1_000_000
    """Environment steps of each run, rounded up to whole rollouts."""
    gradient_updates: int | None = None
    """If given, train until the student has learned from this many rollouts, however many steps that takes."""
    log_every: int = 50
    """Updates between two lines of metrics; they are one call of the compiled program."""
    checkpoint_seconds: float = 60.0
    """Least time between two checkpoints; 0 to save with every line of metrics."""
    processes: int = 2
    """For simulators on the host: the processes they run in; 0 to run them in this one."""
    patience_seconds: float = 60.0
    """For simulators on the host: how long one step of all of them may take before a process counts as hung."""

    @property
    def updates(self) -> int:
        """How many rollouts make up the steps."""
        return -(-self.steps // (self.workers * self.rollout))

    @property
    def replays(self) -> bool:
        """Whether the teacher keeps levels to replay them."""
        return self.teacher in ("plr", "robust_plr")

    @property
    def method(self) -> str:
        """The name of this pair of teacher and grounding, or `teacher+grounding` where it has none."""
        for name, pair in METHODS.items():
            if pair == (self.teacher, self.grounding):
                return name
        return f"{self.teacher}+{self.grounding}"


def default_config(env: str | Environment = "icy_road", method: str = "samplr", **changes: Any) -> Config:
    """The defaults of an environment under a method.

    **Arguments:**

    - `env`: a name, an import path `my_package:MyEnv`, or an environment.
    - `method`: one of `METHODS`.
    - `changes`: fields to change; nested ones with a double underscore, as `student__learning_rate=3e-4`.
    """
    if method not in METHODS:
        raise UnknownNameError("method", method, METHODS)
    teacher, grounding = METHODS[method]
    config = _environment_defaults(make_environment(env) if isinstance(env, str) else env)
    config = dataclasses.replace(config, teacher=teacher, grounding=grounding)
    for name, value in changes.items():
        config = _replaced(config, name.split("__"), value)
    validate(config)
    return config


def with_changes(config: Config, changes: Mapping[str, Any]) -> Config:
    """A configuration with some fields changed, by their dotted names, as `student.learning_rate`."""
    for name, value in changes.items():
        config = _replaced(config, name.split("."), value)
    return config


def _environment_defaults(env: Environment) -> Config:
    return with_changes(Config(env), env.defaults)


def _replaced(config: Config, path: list[str], value: Any) -> Config:
    """A configuration with one field, possibly nested, changed."""
    nested = value
    for name in reversed(path):
        nested = {name: nested}
    changed: Config = _merged(config, nested)
    return changed


def validate(config: Config) -> None:
    """Raise `SamplrError` where a configuration cannot be trained."""
    _validate_numbers(config)
    student, replay = config.student, config.replay
    if config.teacher == "fixed":
        if not config.presents:
            raise SamplrError("--teacher fixed needs --presents SUITE or SUITE/CONDITION: see `samplr list suites`")
        levels_named(config.env, config.presents)
        if config.fictitious.posterior == "learned" or config.fictitious.prior == "estimated":
            raise SamplrError("--teacher fixed presents no levels of the ground truth that a belief could learn from")
    elif config.presents:
        raise SamplrError(f"--presents is for --teacher fixed, not for '{config.teacher}'")
    if config.replays and replay.rate == 0:
        raise SamplrError("--replay.rate 0 never replays a level: choose --teacher dr instead")
    if config.grounding == "fictitious" and config.replays and replay.score in HINDSIGHT_SCORES:
        raise SamplrError(
            f"--replay.score {replay.score} judges by hindsight, which grounding 'fictitious' rules out: "
            "choose positive_value_loss or l1_value_loss"
        )
    if config.fictitious.posterior == "learned" and config.fictitious.samples == "exact":
        raise SamplrError(
            "--fictitious.samples exact needs a posterior that can be summed, which a learned one cannot: give a number"
        )
    if config.fictitious.posterior == "learned" and config.fictitious.prior == "estimated":
        raise SamplrError(
            "--fictitious.prior estimated is for exact posteriors: a learned one finds its prior by itself"
        )
    if student.sees_actions and not student.memory:
        raise SamplrError("--student.sees-actions needs a student that remembers: give it a --student.memory")
    if student.informed_critic and config.grounding == "fictitious":
        raise SamplrError(
            "--student.informed-critic judges an episode by its own θ′, which grounding 'fictitious' redraws at every "
            "step: choose --fictitious.samples exact for less luck"
        )
    sequences = config.workers if student.memory else config.workers * config.rollout
    if sequences % student.minibatches:
        unit = "workers" if student.memory else "workers × rollout steps"
        raise SamplrError(
            f"--student.minibatches {student.minibatches} does not divide the {sequences} {unit} of a rollout"
        )


def without_effect(config: Config, defaults: Config) -> list[str]:
    """What a configuration changes of its defaults in vain, one sentence for each setting."""
    replays, grounds = config.replays, config.grounding == "fictitious"
    reasons = {} if replays else {"replay": f"teacher '{config.teacher}' replays no levels"}
    if not grounds:
        reasons["fictitious"] = f"grounding '{config.grounding}' has no fictitious transitions"
    if not grounds or config.fictitious.posterior != "learned":
        reasons["belief"] = "no posterior is learned"
    return [
        f"--{group}.{field.name.replace('_', '-')} has no effect: {reason}"
        for group, reason in reasons.items()
        for field in dataclasses.fields(getattr(config, group))
        if getattr(getattr(config, group), field.name) != getattr(getattr(defaults, group), field.name)
    ]


def _validate_numbers(config: Config) -> None:
    """Raise `SamplrError` for a number outside of its range; NaN is outside of every range."""
    student, replay, samples = config.student, config.replay, config.fictitious.samples
    at_least_one = {
        "steps": config.steps,
        "seeds": config.seeds,
        "workers": config.workers,
        "rollout": config.rollout,
        "log-every": config.log_every,
        "student.epochs": student.epochs,
        "student.minibatches": student.minibatches,
        "replay.capacity": replay.capacity,
        "gradient-updates": 1 if config.gradient_updates is None else config.gradient_updates,
        "fictitious.samples": 1 if samples == "exact" else samples,
        "belief.memory": config.belief.memory,
        "belief.epochs": config.belief.epochs,
    }
    not_negative = {
        "student.memory": student.memory,
        "student.head": student.head,
        "student.value-coefficient": student.value_coefficient,
        "student.entropy-coefficient": student.entropy_coefficient,
        "checkpoint-seconds": config.checkpoint_seconds,
        "processes": config.processes,
    }
    shares = {
        "replay.rate": replay.rate,
        "replay.fill": replay.fill,
        "replay.staleness": replay.staleness,
        "student.discount": student.discount,
        "student.gae-lambda": student.gae_lambda,
    }
    positive = {
        "replay.temperature": replay.temperature,
        "student.learning-rate": student.learning_rate,
        "student.adam-epsilon": student.adam_epsilon,
        "belief.learning-rate": config.belief.learning_rate,
        "student.clip": student.clip,
        "student.max-gradient-norm": student.max_gradient_norm,
        "student.policy-gain": student.policy_gain,
        "patience-seconds": config.patience_seconds,
    }
    at_least_one |= {f"student.hidden[{place}]": width for place, width in enumerate(student.hidden)}
    last_seed = {"first-seed": config.first_seed + config.seeds - 1}
    _require(at_least_one, lambda number: number >= 1, "must be at least 1, not")
    _require(last_seed, lambda number: -(2**31) <= number < 2**31, "must leave all seeds in 32 bits, and the last is")
    _require({"belief.bins": config.belief.bins}, lambda number: number >= 2, "must be at least 2, not")
    _require(not_negative, lambda number: 0 <= number < math.inf, "must not be negative, and is")
    _require(shares, lambda number: 0 <= number <= 1, "must lie between 0 and 1, not")
    _require(positive, lambda number: 0 < number < math.inf, "must be a positive number, not")


def _require(numbers: Mapping[str, float], fits: Callable[[float], bool], rule: str) -> None:
    for name, number in numbers.items():
        if not fits(number):
            raise SamplrError(f"--{name} {rule} {number:g}")


def to_json(config: Config) -> dict[str, Any]:
    """A configuration as JSON; the environment by its name and settings."""
    data = _plain(config)
    data["env"] = {"name": environment_name(type(config.env)), **data["env"]}
    return data


def from_json(data: Mapping[str, Any]) -> Config:
    """Read what `to_json` wrote. Fields left out take the environment's defaults."""
    env = data.get("env") if isinstance(data, Mapping) else None
    if not isinstance(env, Mapping) or not isinstance(env.get("name"), str):
        raise SamplrError(
            f'a configuration names its environment, {{"env": {{"name": …}}}}, and this has env = {env!r}'
        )
    settings = {name: value for name, value in env.items() if name != "name"}
    config = _environment_defaults(_merged(make_environment(env["name"]), settings, "env."))
    config = _merged(config, {name: value for name, value in data.items() if name != "env"})
    validate(config)
    return config


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    return list(value) if isinstance(value, tuple) else value


def _merged(instance: Any, data: Mapping[str, Any], prefix: str = "") -> Any:
    """A dataclass with the fields that `data` names, checked against their types."""
    hints = typing.get_type_hints(type(instance))
    known = [f.name for f in dataclasses.fields(instance)]
    changes = {}
    for name, value in data.items():
        if name not in known:
            raise UnknownNameError("configuration field", prefix + name, known)
        current = getattr(instance, name)
        if dataclasses.is_dataclass(current):
            if not isinstance(value, Mapping):
                raise SamplrError(f"the configuration's {prefix + name} cannot be {value!r}: it has fields of its own")
            changes[name] = _merged(current, value, f"{prefix}{name}.")
        else:
            changes[name] = _converted(value, hints[name], prefix + name)
    return dataclasses.replace(instance, **changes)


def _converted(value: Any, hint: Any, name: str) -> Any:
    """`value` as `hint` asks for: what JSON cannot say (tuples, whole floats) is mended, the rest refused."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        for option in arguments:
            try:
                return _converted(value, option, name)
            except SamplrError:
                continue
    elif origin is Literal:
        if value in arguments:
            return value
        raise UnknownNameError(name, str(value), [str(argument) for argument in arguments])
    elif origin is tuple and isinstance(value, (list, tuple)):
        return tuple(_converted(item, arguments[0], name) for item in value)
    elif hint is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    elif type(value) is hint or (origin is None and hint not in CHECKED_TYPES):
        return value
    raise SamplrError(f"the configuration's {name} cannot be {value!r}: it must be {_type_name(hint)}")


CHECKED_TYPES = {int, bool, str, float, type(None)}
"""Types a field's value is checked for; an environment's fields of any other type are its own business."""


def _type_name(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) else str(hint)
