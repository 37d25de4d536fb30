"""What samplr tells a user when something is wrong: one sentence that says what to do."""

from collections.abc import Iterable


class SamplrError(Exception):
    """A mistake the user can mend; the command line prints it as one sentence and exits with status 2."""


class SamplrWarning(UserWarning):
    """Something that works, but perhaps not as the user expects; one line."""


class GroundingWarning(SamplrWarning):
    """What is hidden may not mean to the student what it means at deployment."""


class UnknownNameError(SamplrError):
    """A name that is not in a list of known names; the message lists them."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        self._told = (kind, name, sorted(known))
        super().__init__(f"unknown {kind} '{name}': choose one of {', '.join(self._told[2])}")

    def __reduce__(self) -> tuple[type["UnknownNameError"], tuple[str, str, list[str]]]:
        """On its way between processes it is made again of its parts: by default that would be of its text."""
        return type(self), self._told


class LevelError(SamplrError):
    """A level that does not fit its environment."""


class RunFolderError(SamplrError):
    """A run folder that cannot be used as asked; nothing in it was changed."""


class BusyError(RunFolderError):
    """A run folder in which another process is at work."""


def in_one_line(error: Exception) -> str:
    """What an error of someone else's says, fit to be a part of our sentence."""
    return " ".join(str(error).split()) or type(error).__name__
