"""Pictures for human eyes."""

import functools
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from samplr.envs.black_ice.physics import Car, start
from samplr.envs.black_ice.picture import picture
from samplr.envs.black_ice.tracks import Track, bezier_track, sample_control_points, track_along

NONE = np.zeros(468, bool)


@functools.cache
def scene() -> tuple[Track, Car]:
    track = bezier_track(sample_control_points(key=jax.random.key(0)))
    return track, start(track.centre[5], track.heading[5])


@pytest.mark.parametrize("follow", [True, False])
@pytest.mark.parametrize("size", [(640, 480), (200, 301)])
def test_a_picture_has_the_size_asked_for(size: tuple[int, int], follow: bool) -> None:
    seen = picture(*scene(), NONE, NONE, size=size, follow=follow)
    assert seen.shape == (size[1], size[0], 3)
    assert seen.dtype == np.uint8


@pytest.mark.parametrize("follow", [True, False])
def test_ice_and_visits_are_seen(follow: bool) -> None:
    plain = picture(*scene(), NONE, NONE, follow=follow).astype(int)
    icy = picture(*scene(), ~NONE, NONE, follow=follow).astype(int)
    visited = picture(*scene(), NONE, ~NONE, follow=follow).astype(int)
    road = np.all(plain.max(axis=-1, keepdims=True) < 100, axis=-1)
    changed = np.any(plain != icy, axis=-1)
    assert changed.mean() > 0.02
    assert (icy - plain)[changed].mean(axis=0)[2] > 40
    assert (visited - plain)[road & changed].mean() > 10


def test_the_car_faces_up_in_its_own_picture_and_north_is_up_on_the_map() -> None:
    track, car = scene()
    seen = picture(track, car, NONE, NONE).astype(int)
    red = np.argwhere((seen[..., 0] > 180) & (seen[..., 1] < 80))
    red = red[(red[:, 0] > 200) & (np.abs(red[:, 1] - 320) < 60)]
    assert abs(red[:, 1].mean() - 320) < 3
    assert np.ptp(red[:, 0]) > np.ptp(red[:, 1])
    overview = picture(track, car, NONE, NONE, follow=False).astype(int)
    marker = np.argwhere((overview[..., 0] > 180) & (overview[..., 1] < 80)).mean(axis=0)
    assert (marker[0] < 240) == (float(car.position[0, 1]) > 0)
    assert (marker[1] > 320) == (float(car.position[0, 0]) > 0)


def test_films_of_the_longest_circuits_are_drawn_in_reasonable_time() -> None:
    """The aim is 20 pictures per second; the bar leaves room for slow machines, four times that long."""
    angle = 2 * jnp.pi * jnp.arange(4999) / 4999
    track = track_along(350 * jnp.stack([jnp.cos(angle), jnp.sin(angle)], axis=1))
    car, ice = start(track.centre[0], track.heading[0]), np.arange(4999) % 5 == 0
    picture(track, car, ice, ~ice)
    times = []
    for _ in range(3):
        began = time.process_time()
        picture(track, car, ice, ~ice)
        times.append(time.process_time() - began)
    assert min(times) < 0.2
