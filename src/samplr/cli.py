"""The `samplr` command."""

import dataclasses
import json
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, TextIO, TypeVar

import tyro
from jax.errors import JaxRuntimeError
from rich.table import Table

from samplr.errors import SamplrError, SamplrWarning, UnknownNameError
from samplr.options import parsed
from samplr.terminal import print_table
from samplr.version import __version__

E = TypeVar("E")

USAGE = """\
samplr: reinforcement learning with adaptive curricula that stay grounded

  samplr demo                       icy road under five methods, judged by its exact solution
  samplr train ENV --out DIR        train a batch of runs
  samplr eval RUN --suite NAME      let trained runs play a suite of levels
  samplr film RUN --out FILE        film a trained run
  samplr report RUN... --out FILE   put runs and studies on one page, with their levels and films
  samplr reproduce STUDY --out DIR  the paper's experiments: theory, table1, controlled, sketch or fruit
  samplr list envs|methods|suites   what there is

samplr COMMAND --help says more. ENV is a name or an import path, my_package:MyEnv."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    **Returns:** the exit status: 0, or 2 after an error, which was told in one sentence on standard error.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    warnings.showwarning = _show_warning
    if not words or words[0] in ("-h", "--help"):
        print(USAGE)
        return 0
    if words[0] == "--version":
        print(f"samplr {__version__}")
        return 0
    try:
        if words[0] not in COMMANDS:
            raise UnknownNameError("command", words[0], COMMANDS)
        COMMANDS[words[0]](words[1:])
    except SamplrError as error:
        print(f"samplr: {error}", file=sys.stderr)
        return 2
    except JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        print(
            "samplr: the device is out of memory: try fewer --seeds, --workers or --episodes at a time", file=sys.stderr
        )
        return 2
    except KeyboardInterrupt:
        how = {"reproduce": "; the same command goes on from here", "train": "; --resume goes on from here"}
        print(f"samplr: stopped{how.get(words[0], '')}", file=sys.stderr)
        return 130
    return 0


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """A warning of ours is one line for the user; any other is shown as Python shows it."""
    if issubclass(category, SamplrWarning):
        print(f"samplr: warning: {message}", file=sys.stderr)
    else:
        sys.stderr.write(warnings.formatwarning(message, category, filename, lineno, line))


@dataclasses.dataclass(frozen=True)
class Demo:
    """Train DR, PLR⊥, naive and SAMPLR (M = 1 and ∞) on icy road, and judge them by its exact solution."""

    out: Path = Path("demo")
    """Where the table, the figure and the policies go."""
    seeds: int = 8
    """Runs of each method."""
    gradient_updates: int = 250
    """Rollouts each student learns from."""
    json: bool = False
    """Print the results as JSON."""


def demo(words: list[str]) -> None:
    """`samplr demo`."""
    options = parsed(Demo, words, "samplr demo")
    from samplr import demo as demonstration
    from samplr import report

    results = demonstration.run_demo(
        options.out, seeds=options.seeds, gradient_updates=options.gradient_updates, progress=not options.json
    )
    titles = {name: variant.title for name, variant in demonstration.VARIANTS.items()}
    _show(results if options.json else report.demo_table(results, titles))
    if not options.json:
        files = ", ".join(str(options.out / name) for name in sorted(demonstration.OWN_FILES))
        print(f"Written: {files}")


@dataclasses.dataclass(frozen=True)
class Train(Generic[E]):
    """Train a batch of runs."""

    settings: Annotated[E, tyro.conf.arg(name="")]
    out: Path
    """The run folder: configuration, metrics, checkpoints, summary."""
    method: str = "samplr"
    """A named pair of teacher and grounding: see `samplr list methods`."""
    config: Path | None = None
    """A JSON file like a run's config.json to start from; options on the command line change it."""
    resume: bool = False
    """Go on where the run in --out stopped, if there is one."""
    json: bool = False
    """Print the summary as JSON."""


def train(words: list[str]) -> None:
    """`samplr train`."""
    from samplr.config import Config, without_effect
    from samplr.run import train as train_runs

    asks_for_help = any(word in ("-h", "--help") for word in words)
    if asks_for_help and words[0].startswith("-"):
        words = ["icy_road", *words]
    if not words or words[0].startswith("-"):
        raise SamplrError("name the environment first: samplr train ENV --out DIR (see `samplr list envs`)")
    defaults = _train_defaults(words[0], _value_of("--method", words), _value_of("--config", words))
    # The options depend on the environment's own settings, so the type to parse is known only now.
    generic: Any = Train
    command = generic[Config[type(defaults.env)]]  # type: ignore[misc]
    out = _value_of("--out", words)
    if "--resume" in words and out is not None and _value_of("--config", words) is None:
        defaults = _as_recorded(defaults, _value_of("--method", words), Path(out))
    default = Train(defaults, out=tyro.MISSING)
    options = parsed(command, words[1:], f"samplr train {words[0]}", default=default)
    for line in without_effect(options.settings, defaults):
        warnings.warn(line, SamplrWarning, stacklevel=1)
    run = train_runs(options.settings, options.out, resume=options.resume, progress=not options.json)
    _show(run.summary if options.json else _summary_table(run.summary))


def _as_recorded(defaults: Any, method: str | None, out: Path) -> Any:
    """The defaults for a run that goes on: all is as its folder says, unless options say otherwise."""
    from samplr.config import from_json
    from samplr.store import read_config

    if not (out / "config.json").is_file():
        return defaults
    recorded = from_json(read_config(out))
    if type(recorded.env) is not type(defaults.env):
        return defaults  # the folder will refuse it
    pair = {} if method is None else {"teacher": defaults.teacher, "grounding": defaults.grounding}
    return dataclasses.replace(recorded, **pair)


def _train_defaults(env: str, method: str | None, file: str | None) -> Any:
    """The configuration that the command line's options change: of an environment and method, or of a file."""
    from samplr.config import METHODS, default_config, from_json
    from samplr.envs import environment_class

    if file is None:
        return default_config(env, method or "samplr")
    data = _read_json(Path(file))
    try:
        config = from_json(data["config"] if isinstance(data, dict) and "config" in data else data)
    except SamplrError as error:
        raise SamplrError(f"'{file}' cannot be used: {error}") from error
    if type(config.env) is not environment_class(env):
        raise SamplrError(f"'{file}' configures another environment than {env}")
    if method is None:
        return config
    if method not in METHODS:
        raise UnknownNameError("method", method, METHODS)
    teacher, grounding = METHODS[method]
    return dataclasses.replace(config, teacher=teacher, grounding=grounding)


def _value_of(option: str, words: Sequence[str]) -> str | None:
    """The value of an option that must be known before the others can be parsed."""
    for word, following in zip(words, [*words[1:], None], strict=True):
        if word == option:
            return following
        if word.startswith(option + "="):
            return word.removeprefix(option + "=")
    return None


@dataclasses.dataclass(frozen=True)
class Eval:
    """Let trained runs play a suite of levels, the same for every run."""

    run: tyro.conf.Positional[Path]
    """The run folder, or a file of policies."""
    suite: str | None = None
    """A suite of the run's environment: see `samplr list suites`. By default `ground_truth`."""
    levels: Path | None = None
    """A JSON file with a list of levels to play instead of a suite."""
    circuit: Path | None = None
    """For black ice: a centre line of your own, as GeoJSON or CSV, to drive instead of a suite."""
    episodes: int = 100
    """Episodes of each condition."""
    deterministic: bool = False
    """Take the most likely action instead of sampling."""
    seed: int = 0
    """Which levels are drawn."""
    set: tuple[str, ...] = ()
    """Settings of the world to change for this test, as env.ice_rule=min: how do students fare in another one?"""
    backend: str | None = None
    """Play in a real simulator as well, `box2d` for black ice or `nethack` for fruit choice, and compare."""
    json: bool = False
    """Print the results as JSON."""


def evaluate(words: list[str]) -> None:
    """`samplr eval`."""
    options = parsed(Eval, words, "samplr eval")
    from samplr.evaluation import evaluate as play
    from samplr.report import evaluation_table, transfer_table
    from samplr.run import load
    from samplr.settings import changed_world, parse_settings
    from samplr.transfer import transfer

    if options.episodes < 1:
        raise SamplrError(f"--episodes must be at least 1, not {options.episodes}")
    _refuse_large_seed(options.seed)
    run = load(options.run)
    env = changed_world(run.config, parse_settings(options.set))
    name, suite = _chosen_suite(env, options.suite, options.levels, options.circuit)
    settings: dict[str, Any] = {
        "episodes": options.episodes,
        "deterministic": options.deterministic,
        "seed": options.seed,
        "processes": run.config.processes,
        "patience_seconds": run.config.patience_seconds,
        "progress": not options.json,
    }
    title = ", ".join([f"{options.run}: {name}", *options.set])
    results: Mapping[str, Any]
    if options.backend is None:
        results = play(env, run.networks, suite, **settings)
        table = evaluation_table(title, results)
    else:
        results = transfer(env, options.backend, run.networks, suite, **settings)
        table = transfer_table(title, options.backend, results)
    as_json = {condition: outcome.to_json() for condition, outcome in results.items()}
    _show(as_json if options.json else table)


def _refuse_large_seed(seed: int) -> None:
    if not -(2**31) <= seed < 2**31:
        raise SamplrError(f"--seed must have at most 32 bits, and is {seed}")


def _chosen_suite(env: Any, suite: str | None, levels: Path | None, circuit: Path | None) -> tuple[str, Any]:
    """The suite to play, and what to call it."""
    from samplr.evaluation import suite_named, suite_of_levels

    given = [f"--{name}" for name, it in {"suite": suite, "levels": levels, "circuit": circuit}.items() if it]
    if len(given) > 1:
        raise SamplrError(f"{' and '.join(given)} say different things about what to play: give one of them")
    if circuit is not None:
        from samplr.envs.black_ice import BlackIce
        from samplr.envs.black_ice.circuits import read_circuit

        if not isinstance(env, BlackIce):
            raise SamplrError("--circuit is for runs on black_ice, and this one was trained in another world")
        return str(circuit), env.circuit_suite(read_circuit(circuit))
    if levels is None:
        return suite or "ground_truth", suite_named(env, suite or "ground_truth")
    data = _read_json(levels)
    if not isinstance(data, list) or not all(isinstance(level, dict) for level in data) or not data:
        raise SamplrError(f"'{levels}' must hold a list of levels, each an object of named parts")
    return str(levels), suite_of_levels([env.level_from_json(level) for level in data])


@dataclasses.dataclass(frozen=True)
class Film:
    """Film a trained run on one level, with what the agent cannot see."""

    run: tyro.conf.Positional[Path]
    """The run folder, or a file of policies."""
    out: Path
    """An .mp4 or .gif file."""
    suite: str | None = None
    """A suite of the run's environment: see `samplr list suites`. By default `ground_truth`."""
    condition: str | None = None
    """A condition of it; without one, the first."""
    levels: Path | None = None
    """A JSON file with a list of levels to play instead of a suite."""
    circuit: Path | None = None
    """For black ice: a centre line of your own, as GeoJSON or CSV, to drive instead of a suite."""
    student: int = 0
    """Which of the batch's runs to film, counted from 0."""
    deterministic: bool = False
    """Take the most likely action instead of sampling."""
    seconds: float = 60.0
    """Length of the film at most."""
    seed: int = 0
    """Which level is drawn."""


def make_film(words: list[str]) -> None:
    """`samplr film`."""
    options = parsed(Film, words, "samplr film")
    import jax

    from samplr.film import film
    from samplr.run import load

    _refuse_large_seed(options.seed)
    run = load(options.run)
    _, suite = _chosen_suite(run.env, options.suite, options.levels, options.circuit)
    condition = options.condition or next(iter(suite))
    if condition not in suite:
        raise UnknownNameError("condition", condition, suite)
    if not 0 <= options.student < run.config.seeds:
        raise SamplrError(f"--student {options.student}: this batch has runs 0 to {run.config.seeds - 1}")
    level_key, play_key = jax.random.split(jax.random.key(options.seed))
    count = film(
        run.env,
        run.policies[options.student],
        suite[condition](level_key),
        options.out,
        key=play_key,
        deterministic=options.deterministic,
        seconds=options.seconds,
        progress=True,
    )
    print(f"Written: {options.out} ({count} pictures of {condition})")


@dataclasses.dataclass(frozen=True)
class Reproduce:
    """Repeat an experiment of the paper, in pieces: what is done is not repeated, what was stopped goes on."""

    study: tyro.conf.Positional[Literal["theory", "table1", "controlled", "sketch", "fruit"]]
    """`theory` on icy road (minutes on two CPU cores); `sketch` on black ice without pictures (some ten minutes there
    for five seeds of a method); `table1` on black ice, `controlled` there with one change at a time, `fruit` on fruit
    choice (all three: a GPU)."""
    out: Path
    """The study's folder; it may hold pieces that were done before."""
    seeds: int | None = None
    """How many seeds of each method; by default the study's."""
    first_seed: int = 0
    """The first of them."""
    methods: tuple[str, ...] = ()
    """Some of the study's methods; by default all."""
    steps: int | None = None
    """Environment steps of each run; by default the study's."""
    set: tuple[str, ...] = ()
    """Settings to change, as student.learning_rate=3e-4; such a variant has a name and folders of its own."""
    only: Literal["train", "evaluate", "report"] | None = None
    """Do this part only."""
    json: bool = False
    """Print the results as JSON."""


def reproduce(words: list[str]) -> None:
    """`samplr reproduce`."""
    options = parsed(Reproduce, words, "samplr reproduce")
    from samplr.reproduce import STUDIES
    from samplr.reproduce import reproduce as do_study
    from samplr.settings import parse_settings

    report = do_study(
        STUDIES[options.study],
        options.out,
        seeds=options.seeds,
        first_seed=options.first_seed,
        methods=options.methods,
        steps=options.steps,
        settings=parse_settings(options.set),
        only=options.only,
        progress=not options.json,
    )
    for what in [report.results] if options.json else [*report.tables, *report.tests]:
        _show(what)


@dataclasses.dataclass(frozen=True)
class Report:
    """Put runs and studies on one page: tables, curves, the levels they ended on, films. It needs nothing else."""

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Run folders, folders that hold some, or folders of studies."""
    out: Path
    """The HTML file; a report that is there already is replaced."""


def make_report(words: list[str]) -> None:
    """`samplr report`."""
    options = parsed(Report, words, "samplr report")
    from samplr.report.page import write_report

    size = write_report(options.runs, options.out, progress=True)
    print(f"Written: {options.out} ({size / 1000:,.0f} kB)")


@dataclasses.dataclass(frozen=True)
class List:
    """Show what there is."""

    what: tyro.conf.Positional[Literal["envs", "methods", "suites"]]
    json: bool = False
    """Print as JSON."""


def show_list(words: list[str]) -> None:
    """`samplr list`."""
    options = parsed(List, words, "samplr list")
    from samplr.config import METHODS
    from samplr.envs import ENVIRONMENTS, environment_class

    if options.what == "methods":
        known: dict[str, Any] = {
            name: {"teacher": teacher, "grounding": grounding} for name, (teacher, grounding) in METHODS.items()
        }
    else:
        classes = {name: environment_class(name) for name in ENVIRONMENTS}
        if options.what == "envs":
            known = {name: {"what": (found.__doc__ or "").split("\n")[0]} for name, found in classes.items()}
        else:
            known = {
                f"{name} {suite}": {"conditions": list(conditions)}
                for name, found in classes.items()
                for suite, conditions in found().suites().items()
            }
    _show(known if options.json else _rows_table(options.what, known))


COMMANDS: dict[str, Callable[[list[str]], None]] = {
    "demo": demo,
    "train": train,
    "eval": evaluate,
    "film": make_film,
    "report": make_report,
    "reproduce": reproduce,
    "list": show_list,
}


def _rows_table(title: str, rows: dict[str, dict[str, Any]]) -> Table:
    table = Table(title=title)
    table.add_column("name")
    for column in next(iter(rows.values())):
        table.add_column(column)
    for name, row in rows.items():
        table.add_row(name, *[_in_a_cell(value) for value in row.values()])
    return table


def _in_a_cell(value: Any, most: int = 7) -> str:
    """A value as a table shows it; of a long list, the beginning and how many there are."""
    if not isinstance(value, list):
        return str(value)
    return ", ".join(value) if len(value) <= most else f"{', '.join(value[:most])}, … ({len(value)} in all)"


def _summary_table(summary: Any) -> Table:
    """The last figures of every metric: mean and range over runs."""
    table = Table(title=f"{summary['method']}: {summary['steps']:,} steps × {len(summary['seeds'])} runs")
    table.add_column("metric")
    table.add_column("mean over runs", justify="right")
    table.add_column("range", justify="right")
    for name, value in {**summary["last"], **summary["whole_run"]}.items():
        values = [v for v in (value if isinstance(value, list) else [value]) if v is not None]
        if values and "/" in name:
            mean = sum(values) / len(values)
            table.add_row(name, f"{mean:.4g}", f"{min(values):.4g} … {max(values):.4g}")
    return table


def _read_json(file: Path) -> Any:
    try:
        return json.loads(file.read_text())
    except OSError as error:
        raise SamplrError(f"cannot read '{file}': {error.strerror}") from error
    except ValueError as error:
        raise SamplrError(f"'{file}' is not JSON: {error}") from error


def _show(what: Any) -> None:
    if isinstance(what, Table):
        print_table(what)
    else:
        print(json.dumps(what, indent=1))
