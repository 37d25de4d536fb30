"""Trained students as one small file: what they were trained by, and their parameters in half precision."""

import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from samplr.errors import RunFolderError
from samplr.store.files import explained, replacing

_CONFIG = "config"


def write_policies(file: Path, config: Mapping[str, Any], parameters: Mapping[str, np.ndarray]) -> None:
    """Write students; the file appears when it is whole."""
    arrays: dict[str, Any] = {
        name: array.astype(np.float16) if np.issubdtype(array.dtype, np.floating) else array
        for name, array in parameters.items()
    }
    arrays[_CONFIG] = np.frombuffer(json.dumps(config).encode(), np.uint8)
    with explained("write", file):
        file.parent.mkdir(parents=True, exist_ok=True)
        with replacing(file) as stream:
            np.savez(stream, **arrays)


def read_policies(file: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Read what `write_policies` wrote: the configuration, and the parameters, still in half precision."""
    with explained("read", file):
        try:
            with np.load(file, allow_pickle=False) as stored:
                arrays = {name: stored[name] for name in stored.files}
            config: dict[str, Any] = json.loads(arrays.pop(_CONFIG).tobytes())
        except (ValueError, KeyError, EOFError, AttributeError, TypeError, zipfile.BadZipFile) as error:
            raise RunFolderError(f"'{file}' is neither a run folder nor a file of policies") from error
    return config, arrays
