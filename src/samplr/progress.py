"""Progress bars: how far, how fast, how long still. On standard error, so that results can be piped."""

from rich.console import Console
from rich.progress import BarColumn, Progress, Task, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import ProgressColumn as RichColumn
from rich.text import Text


class RateColumn(RichColumn):
    """How many per second: environment steps of all runs together, pictures, ..."""

    def __init__(self, unit: str) -> None:
        super().__init__()
        self.unit = unit

    def render(self, task: Task) -> Text:
        """The rate as a short number."""
        mean = task.completed / task.elapsed if task.completed and task.elapsed else None
        speed = task.finished_speed or task.speed or mean
        return Text("compiling" if speed is None else f"{_short(speed)} {self.unit}/s", style="progress.data.speed")


def progress_bar(unit: str = "steps", *, shown: bool, stays: bool = True) -> Progress:
    """A bar that counts in some unit; `shown=False` gives one that draws nothing, `stays=False` one that vanishes."""
    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        RateColumn(unit),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
        console=console,
        disable=not shown or not (stays or console.is_terminal),
        transient=not stays,
    )


def _short(number: float) -> str:
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g}{unit}"
    return f"{number:.3g}"
