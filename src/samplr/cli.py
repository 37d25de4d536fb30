"""The `samplr` command."""

import dataclasses
import json
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, TextIO, TypeVar

import tyro
from rich.console import Console
from rich.table import Table

from samplr.errors import SamplrError, SamplrWarning, UnknownNameError

E = TypeVar("E")

USAGE = """\
samplr: reinforcement learning with adaptive curricula that stay grounded

  samplr demo                       icy road under every method, judged by its exact solution
  samplr train ENV --out DIR        train a batch of runs
  samplr eval RUN --suite NAME      let trained runs play a suite of levels
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
    try:
        if words[0] not in COMMANDS:
            raise UnknownNameError("command", words[0], COMMANDS)
        COMMANDS[words[0]](words[1:])
    except SamplrError as error:
        print(f"samplr: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("samplr: stopped; a run folder can be continued with --resume", file=sys.stderr)
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
    """Train every method on icy road, and judge them by its exact solution."""

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
    options = tyro.cli(Demo, args=words, prog="samplr demo")
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
    from samplr.config import Config
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
    default = Train(defaults, out=tyro.MISSING)
    options = tyro.cli(command, default=default, args=words[1:], prog=f"samplr train {words[0]}")
    run = train_runs(options.settings, options.out, resume=options.resume, progress=not options.json)
    _show(run.summary if options.json else _summary_table(run.summary))


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
    """The run folder."""
    suite: str = "ground_truth"
    """A suite of the run's environment: see `samplr list suites`."""
    levels: Path | None = None
    """A JSON file with a list of levels to play instead of a suite."""
    episodes: int = 100
    """Episodes of each condition."""
    deterministic: bool = False
    """Take the most likely action instead of sampling."""
    seed: int = 0
    """Which levels are drawn."""
    json: bool = False
    """Print the results as JSON."""


def evaluate(words: list[str]) -> None:
    """`samplr eval`."""
    options = tyro.cli(Eval, args=words, prog="samplr eval")
    from samplr.evaluation import evaluate as play
    from samplr.evaluation import suite_named, suite_of_levels
    from samplr.report import evaluation_table
    from samplr.run import load

    if options.episodes < 1:
        raise SamplrError(f"--episodes must be at least 1, not {options.episodes}")
    run = load(options.run)
    name = options.suite if options.levels is None else str(options.levels)
    suite = suite_named(run.env, options.suite) if options.levels is None else None
    if options.levels is not None:
        data = _read_json(options.levels)
        if not isinstance(data, list) or not all(isinstance(level, dict) for level in data) or not data:
            raise SamplrError(f"'{options.levels}' must hold a list of levels, each an object of named parts")
        suite = suite_of_levels([run.env.level_from_json(level) for level in data])
    assert suite is not None
    results = play(
        run.env,
        run.networks,
        suite,
        episodes=options.episodes,
        deterministic=options.deterministic,
        seed=options.seed,
    )
    as_json = {condition: outcome.to_json() for condition, outcome in results.items()}
    _show(as_json if options.json else evaluation_table(f"{options.run}: {name}", results))


@dataclasses.dataclass(frozen=True)
class List:
    """Show what there is."""

    what: tyro.conf.Positional[Literal["envs", "methods", "suites"]]
    json: bool = False
    """Print as JSON."""


def show_list(words: list[str]) -> None:
    """`samplr list`."""
    options = tyro.cli(List, args=words, prog="samplr list")
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
                f"{name} {suite}": {"conditions": ", ".join(conditions)}
                for name, found in classes.items()
                for suite, conditions in found().suites().items()
            }
    _show(known if options.json else _rows_table(options.what, known))


COMMANDS: dict[str, Callable[[list[str]], None]] = {
    "demo": demo,
    "train": train,
    "eval": evaluate,
    "list": show_list,
}


def _rows_table(title: str, rows: dict[str, dict[str, Any]]) -> Table:
    table = Table(title=title)
    table.add_column("name")
    for column in next(iter(rows.values())):
        table.add_column(column)
    for name, row in rows.items():
        table.add_row(name, *[str(value) for value in row.values()])
    return table


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
        Console().print(what)
    else:
        print(json.dumps(what, indent=1))
