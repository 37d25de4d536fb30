"""Pictures and films as data URIs: small, and inside of the page."""

import base64
import io
import itertools
import tempfile
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np
from jaxtyping import UInt8
from PIL import Image

from samplr.envs.api import Environment, Level
from samplr.film import film_writer, play
from samplr.run import Policy

PICTURE_WIDTH = 640
"""Pixels across a picture or film, at most."""
FILM_SECONDS = 6.0
_SMALL = 2**16
"""Pictures of fewer bytes are kept as they are; they are made of a few flat colours."""


@dataclass(frozen=True)
class ShortFilm:
    """A film, and its first picture."""

    uri: str
    poster: str
    width: int
    height: int


def data_uri(kind: str, data: bytes) -> str:
    """Data that is its own address."""
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def picture_uri(picture: UInt8[np.ndarray, "height width 3"]) -> str:
    """A picture for the page."""
    data = io.BytesIO()
    if picture.nbytes < _SMALL:
        Image.fromarray(picture).save(data, "PNG", optimize=True)
        return data_uri("image/png", data.getvalue())
    Image.fromarray(_shrunk(picture)).save(data, "WEBP", quality=80, method=6)
    return data_uri("image/webp", data.getvalue())


def short_film(env: Environment, policy: Policy, level: Level) -> ShortFilm:
    """The first seconds of an episode."""
    rate = env.pictures_per_second
    episode = play(env, policy, level, key=jax.random.key(0), deterministic=False)
    pictures = [_shrunk(picture) for picture in itertools.islice(episode, max(1, int(FILM_SECONDS * rate)))]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "film.mp4"
        with film_writer(file, rate) as writer:
            for picture in pictures:
                writer.append_data(picture)
        uri = data_uri("video/mp4", file.read_bytes())
    height, width = pictures[0].shape[:2]
    return ShortFilm(uri, picture_uri(pictures[0]), width, height)


def _shrunk(picture: UInt8[np.ndarray, "height width 3"]) -> UInt8[np.ndarray, "height width 3"]:
    """A picture that is no wider than it needs to be; its sides are even, as films must be."""
    height, width = picture.shape[:2]
    share = min(1.0, PICTURE_WIDTH / width)
    size = (2 * round(width * share / 2), 2 * round(height * share / 2))
    return np.asarray(Image.fromarray(picture).resize(size, Image.Resampling.LANCZOS))
