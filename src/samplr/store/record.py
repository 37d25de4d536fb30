"""config.json: what was run, and with which versions; a run is resumed only as what it was."""

import importlib.metadata
import json
import platform
import warnings
from collections.abc import Collection
from pathlib import Path
from typing import Any

from samplr.errors import RunFolderError, SamplrWarning
from samplr.store import files
from samplr.version import __version__

CONFIG = "config.json"


def write_record(path: Path, config: dict[str, Any], may_change: Collection[str]) -> None:
    """Write config.json; over an existing one, only if it is of the same run.

    **Arguments:**

    - `path`: the run folder.
    - `config`: what is run.
    - `may_change`: the top-level keys of `config` in which the same run may differ.
    """
    record = {
        "samplr": __version__,
        "versions": {
            "python": platform.python_version(),
            "jax": importlib.metadata.version("jax"),
            "jaxlib": importlib.metadata.version("jaxlib"),
        },
        "config": json.loads(json.dumps(config)),  # as it will be read back, to compare: tuples are lists
    }
    if (path / CONFIG).exists():
        before = read_record(path)
        _refuse_other_run(path, before["config"], record["config"], may_change)
        _warn_of_other_versions(path, _versions(before), _versions(record))
    files.write_json(path / CONFIG, record)


def read_record(path: Path) -> dict[str, Any]:
    """Read the whole of config.json, versions and all."""
    file = path / CONFIG
    if not file.is_file():
        raise RunFolderError(f"'{path}' is not a run folder: it has no {CONFIG}")
    try:
        record: dict[str, Any] = json.loads(file.read_bytes())
        readable = isinstance(record["config"], dict) and isinstance(_versions(record), dict)
    except (ValueError, KeyError, TypeError):
        readable = False
    if not readable:
        raise RunFolderError(f"'{file}' is not as samplr wrote it: restore it, or choose another folder")
    return record


def _versions(record: dict[str, Any]) -> dict[str, str]:
    return {"samplr": record["samplr"], **record["versions"]}


def _refuse_other_run(path: Path, before: dict[str, Any], now: dict[str, Any], may_change: Collection[str]) -> None:
    fixed_before, fixed_now = (
        {key: value for key, value in config.items() if key not in may_change} for config in (before, now)
    )
    difference = first_difference(fixed_before, fixed_now)
    if difference:
        field, value_before, value_now = difference
        raise RunFolderError(
            f"'{path}' holds a run with another configuration: {field} is {value_before!r} there and "
            f"{value_now!r} here; resume it as it was, or choose another --out"
        )


class _Absent:
    """The value of a field that a configuration does not have."""

    def __repr__(self) -> str:
        return "absent"


def first_difference(before: Any, now: Any, field: str = "") -> tuple[str, Any, Any] | None:
    """Find the first field, as a dotted path, in which two configurations differ, with both values."""
    if not (isinstance(before, dict) and isinstance(now, dict)):
        return None if before == now else (field, before, now)
    for key in now | before:
        inner = f"{field}.{key}" if field else key
        difference = first_difference(before.get(key, _Absent()), now.get(key, _Absent()), inner)
        if difference:
            return difference
    return None


def _warn_of_other_versions(path: Path, before: dict[str, str], now: dict[str, str]) -> None:
    changed = [f"{name} {before.get(name)} -> {now[name]}" for name in now if before.get(name) != now[name]]
    if changed:
        warnings.warn(
            f"'{path}' is resumed under other versions ({', '.join(changed)}): the result may differ in the last bits",
            SamplrWarning,
            stacklevel=2,
        )
