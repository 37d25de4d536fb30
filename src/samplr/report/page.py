"""The page of `samplr report`: one HTML file that needs nothing else, and no script to be read."""

import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

from samplr.errors import SamplrError
from samplr.evaluation import Estimate
from samplr.report.contents import Contents, WorldContents, gather
from samplr.report.curves import at_the_end, over_the_run
from samplr.report.curves import figures as figures_of
from samplr.report.curves import summaries as summaries_of
from samplr.report.drawings import curves_section, shift_section, styles_of
from samplr.report.levels import films_section, levels_section
from samplr.report.prose import prose
from samplr.report.runs import Method, World, command, show
from samplr.report.studies import Cells, Findings
from samplr.store.files import write_atomically
from samplr.version import __version__

GENERATOR = '<meta name="generator" content="samplr report '
"""By this line a page is known to be ours."""

FEW = 6
"""More methods or commands than this are not listed where they would be in the way."""

_PAGE = Template("""\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
$generator$version">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="$policy">
<title>$title</title>
<link rel="icon" href="data:,">
<style>
$style</style>
</head>
<body>
<div class="page">
<header>
<h1>$title</h1>
<p class="lead">$lead</p>
$navigation
</header>
<main>
$main
</main>
<footer>
<p>Made by samplr $version. SAMPLR and its baselines are those of
<a href="https://arxiv.org/abs/2207.05219">Grounding Aleatoric Uncertainty for Unsupervised Environment Design</a>.</p>
</footer>
</div>
</body>
</html>
""")
_POLICY = "default-src 'none'; img-src data:; media-src data:; style-src 'unsafe-inline'"
"""The browser itself sees to it that nothing is fetched from anywhere."""


def write_report(paths: Sequence[Path], out: Path, *, progress: bool = False) -> int:
    """Write the report of some runs.

    **Arguments:**

    - `paths`: run folders, folders that hold some, and folders of studies.
    - `out`: the HTML file. A report that is there is replaced; anything else is not touched.
    - `progress`: whether to show a progress bar.

    **Returns:** the size of the page in bytes.
    """
    if not paths:
        raise SamplrError("name the folders of the runs to report on: samplr report RUN... --out report.html")
    _refuse_to_overwrite(out)
    text = page(gather(paths, progress=progress))
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(out, text)
    except OSError as error:
        raise SamplrError(f"cannot write '{out}': {error.strerror}") from error
    return len(text.encode())


def _refuse_to_overwrite(out: Path) -> None:
    try:
        with out.open("rb") as stream:
            ours = GENERATOR.encode() in stream.read(2000)
    except FileNotFoundError:
        return
    except OSError as error:
        raise SamplrError(f"cannot write '{out}': {error.strerror}") from error
    if not ours:
        raise SamplrError(f"'{out}' is there already and is no report of samplr: choose another --out")


def page(contents: Contents) -> str:
    """The whole page."""
    runs = sum(len(method.seeds) for of in contents.worlds for method in of.world.methods)
    names = [*(study.name for study in contents.studies), *(of.world.name for of in contents.worlds)]
    title = f"samplr: {', '.join(dict.fromkeys(names))}"
    sections = [_study(study, f"study-{i}") for i, study in enumerate(contents.studies)]
    sections += [_world(of, f"world-{i}") for i, of in enumerate(contents.worlds)]
    if contents.left_out:
        why = f"Left out, to keep this page small: {contents.left_out} galleries, films or figures."
        sections.append(f'<p class="note">{why}</p>')
    links = [(f"study-{i}", f"Study {study.title}") for i, study in enumerate(contents.studies)]
    links += [(f"world-{i}", f"Runs on {of.world.name}") for i, of in enumerate(contents.worlds)]
    items = "".join(f'<li><a href="#{anchor}">{escape(name)}</a></li>' for anchor, name in links)
    return _PAGE.substitute(
        generator=GENERATOR,
        version=escape(__version__),
        policy=_POLICY,
        title=escape(title),
        style=resources.files("samplr.report").joinpath("page.css").read_text(encoding="utf-8"),
        lead=_lead(contents, runs),
        navigation=f'<nav aria-label="Contents"><ul>{items}</ul></nav>' if len(links) > 1 else "",
        main="\n".join(sections),
    )


def _lead(contents: Contents, runs: int) -> str:
    methods = [method for of in contents.worlds for method in of.world.methods]
    if not methods:
        return "Tables and figures of studies."
    titles = list(dict.fromkeys(method.title for method in methods))
    listed = escape(", ".join(titles)) if len(titles) <= FEW else f"{len(methods)} methods and variants"
    return f"{runs} run{'s' if runs > 1 else ''}: {listed}."


# ---- a world


def _world(contents: WorldContents, anchor: str) -> str:
    world = contents.world
    about = (type(world.methods[0].config.env).__doc__ or "").split("\n")[0]
    styles = styles_of(world)
    parts = [
        f'<section id="{anchor}" aria-labelledby="{anchor}-name">',
        f'<h2 id="{anchor}-name">{escape(world.name)}</h2>',
        f'<p class="lead">{prose(about)}</p>',
        _what_was_run(world),
        _results(world),
        curves_section(world, styles),
        shift_section(world, styles),
        levels_section(contents),
        films_section(contents),
        "</section>",
    ]
    return "\n".join(part for part in parts if part)


def _what_was_run(world: World) -> str:
    header = ["method", "teacher", "grounding", "student", "seeds", "steps", "gradient updates", "wall clock", "device"]
    rows = [[_what(method, name) for name in header] for method in world.methods]
    batches = [batch for method in world.methods for batch in method.batches]
    versions = " · ".join(dict.fromkeys(", ".join(f"{n} {v}" for n, v in b.versions.items()) for b in batches))
    opened = " open" if len(batches) <= FEW else ""
    commands = "\n".join(" ".join(f"<span>{escape(word)}</span>" for word in command(batch)) for batch in batches)
    return "\n".join(
        [
            "<h3>What was run</h3>",
            _settings("Settings of the world that differ from its defaults", world.settings),
            _settings("Settings of all methods that differ from their defaults", world.shared),
            table("What was run", header, rows),
            f'<p class="note">Steps and gradient updates are those of each run. Trained with {escape(versions)}.</p>',
            f"<details{opened}><summary>The exact commands</summary><pre><code>{commands}</code></pre></details>",
        ]
    )


def _what(method: Method, name: str) -> str:
    """A cell of the table of what was run."""
    config, batches, last = method.config, method.batches, method.batches[0].run
    student = config.student
    seconds = [batch.seconds for batch in batches]
    match name:
        case "teacher" | "grounding":
            return str(getattr(config, name))
        case "student":
            return f"PPO, {student.encoder}" + (f", LSTM {student.memory}" if student.memory else "")
        case "seeds":
            return _ranges(method.seeds)
        case "steps":
            return f"{last.summary['steps']:,}"
        case "gradient updates":
            return f"{last.metrics[-1]['gradient_updates']:,}" if last.metrics else "0"
        case "wall clock":
            return " + ".join(_duration(s) for s in seconds if s is not None) or "not recorded"
        case "device":
            return ", ".join(dict.fromkeys(batch.device for batch in batches if batch.device)) or "not recorded"
    return method.title


def _ranges(numbers: Sequence[int]) -> str:
    """Seeds as 0–4, 7."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}–{run[-1]}" for run in runs)


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def _settings(title: str, settings: Mapping[str, Any]) -> str:
    if not settings:
        return ""
    items = "".join(
        f"<div><dt>{escape(name.removeprefix('env.'))}</dt> <dd>{escape(show(value))}</dd></div>"
        for name, value in settings.items()
    )
    return f'<p class="note">{title}:</p><dl class="settings">{items}</dl>'


def _results(world: World) -> str:
    figures = list(dict.fromkeys(name for method in world.methods for name in figures_of(method)))
    summaries = list(dict.fromkeys(name for method in world.methods for name in summaries_of(method)))
    if not figures:
        return "<h3>Results</h3><p>These runs have logged nothing yet.</p>"
    header = ["method", *(name.removeprefix("new/").replace("_", " ") for name in figures)]
    header += [f"{name} learned from" for name in summaries]
    rows = [
        [
            method.title,
            *(_estimate(at_the_end(method, name)) for name in figures),
            *(_estimate(over_the_run(method, f"shift/{name}/met_mean")) for name in summaries),
        ]
        for method in world.methods
    ]
    return "\n".join(
        [
            "<h3>Results</h3>",
            table("Results at the end of training, mean ± standard error over seeds", header, rows, numbers=True),
            '<p class="note">Mean ± standard error over seeds. The figures are of episodes on new levels from the '
            "ground truth, by the rules of training, over the last tenth of it; in the return a level counts once; "
            "“learned from” is the mean θ′ of the transitions that the student learned from, over the whole run. "
            "<code>samplr eval</code> evaluates runs by suites of levels.</p>",
        ]
    )


def _estimate(estimate: Estimate | None) -> str:
    """Two digits of the error, and as many places of the mean."""
    if estimate is None:
        return "–"
    error = estimate.standard_error
    if math.isnan(error) or error == 0:
        return f"{estimate.mean:.3g}".replace("-", "−")
    places = min(4, max(0, 1 - math.floor(math.log10(error))))
    return f"{estimate.mean:.{places}f} ± {error:.{places}f}".replace("-", "−")


# ---- studies and tables


def _study(study: Findings, anchor: str) -> str:
    parts = [
        f'<section id="{anchor}" class="study" aria-labelledby="{anchor}-name">',
        f'<h2 id="{anchor}-name">Study {escape(study.title)}</h2>',
        f'<p class="lead">{escape(study.about)} From <code>{escape(str(study.path))}</code>.</p>',
        *(_study_table(cells) for cells in study.tables),
    ]
    for caption, uri in study.figures:
        words = escape(caption)
        parts.append(f'<figure><img src="{uri}" alt="{words}"><figcaption>{words}</figcaption></figure>')
    if study.tests:
        tests = "\n".join(_study_table(cells) for cells in study.tests)
        parts.append(f"<details open><summary>The tests, claim by claim</summary>\n{tests}\n</details>")
    return "\n".join([*parts, _study_table(study.worked), "</section>"])


def _study_table(cells: Cells) -> str:
    heading = f"<h3>{escape(cells.title)}</h3>" if cells.title else ""
    note = f'<p class="note">{escape(cells.caption)}</p>' if cells.caption else ""
    return heading + table(cells.title or "Results", cells.header, cells.rows, numbers=True) + note


def table(name: str, header: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: bool = False) -> str:
    """A table that scrolls by itself where it is wider than the page; the first column names its rows."""
    kind = ' class="number"' if numbers else ""
    head = "".join(f'<th scope="col"{kind if i else ""}>{escape(word)}</th>' for i, word in enumerate(header))
    body = "\n".join(
        "<tr>"
        + "".join(
            f"<td{kind}>{escape(word)}</td>" if i else f'<th scope="row">{escape(word)}</th>'
            for i, word in enumerate(row)
        )
        + "</tr>"
        for row in rows
    )
    return (
        f'<div class="scroll" role="region" aria-label="{escape(name)}" tabindex="0">\n<table>\n'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>\n</div>"
    )
