"""Films: what is in them, how long they are, and `samplr film` with its errors."""

import imageio.v3 as imageio
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from samplr.compiling import jit
from samplr.config import to_json
from samplr.envs.api import Environment, Level
from samplr.envs.icy_road import IcyRoad
from samplr.envs.icy_road.world import IcyRoadState
from samplr.errors import SamplrError
from samplr.film import film, play
from samplr.posteriors import BernoulliField
from samplr.run import Policy, _Progress
from samplr.store import RunFolder
from samplr.student.networks import build_network
from tiny import SharedTraining, command, contents, sharing_programs, tiny_config

ROAD = IcyRoad(segments=5)
KEY = jax.random.key(0)
LEVEL = Level(None, BernoulliField(jnp.float32(0.5), jnp.array([False, True, False, False, True])))
# Forking is how imageio starts ffmpeg; JAX warns that it might deadlock, and the child does nothing but start it.
pytestmark = pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")


@pytest.fixture(scope="module")
def policy():
    """A student that has learned nothing."""
    return Policy(jit(lambda key: build_network(ROAD, "mlp", (4,), 0, key=key), runs_once=True)(KEY))


@pytest.fixture(scope="module")
def expected():
    """The road with the car at each of its segments, and at last at the end."""
    return np.stack([ROAD.render(None, IcyRoadState(jnp.int32(at), LEVEL.aleatoric)) for at in range(6)])


class TestFilm:
    @pytest.mark.parametrize("name", ["film.mp4", "film.gif"])
    def test_one_that_cannot_be_written_is_told(self, policy, tmp_path, name):
        (tmp_path / name).mkdir()
        with pytest.raises(SamplrError, match=rf"cannot write '.*{name}': "):
            film(ROAD, policy, LEVEL, tmp_path / name, key=KEY)

    def test_may_be_as_long_as_it_takes(self, policy, tmp_path):
        assert film(ROAD, policy, LEVEL, tmp_path / "film.gif", key=KEY, seconds=float("inf")) == 6

    def test_an_episode_is_shown_from_its_beginning_to_its_end(self, policy, expected):
        for deterministic in (True, False):
            pictures = list(play(ROAD, policy, LEVEL, key=KEY, deterministic=deterministic))
            np.testing.assert_array_equal(np.stack(pictures), expected)

    @pytest.mark.parametrize("name", ["film.gif", "film.mp4", "FILM.GIF"])
    def test_is_written_and_can_be_read_again(self, name, policy, expected, tmp_path):
        out = tmp_path / "new" / "folder" / name
        assert film(ROAD, policy, LEVEL, out, key=KEY) == 6
        pictures = np.stack(list(imageio.imiter(out)))
        assert pictures.shape == expected.shape
        # Neither format keeps all colours; a car in the wrong place would be off by much more.
        assert np.abs(pictures.astype(int) - expected).mean() < 12
        assert (
            np.abs(pictures[:-1].astype(int) - expected[1:]).mean()
            > 1.5 * np.abs(pictures - expected.astype(int)).mean()
        )

    def test_is_shown_as_fast_as_its_world_says(self, policy, tmp_path):
        film(ROAD, policy, LEVEL, tmp_path / "film.mp4", key=KEY)
        film(ROAD, policy, LEVEL, tmp_path / "film.gif", key=KEY)
        assert imageio.immeta(tmp_path / "film.mp4")["fps"] == pytest.approx(ROAD.pictures_per_second)
        assert imageio.immeta(tmp_path / "film.gif")["duration"] == pytest.approx(1000 / ROAD.pictures_per_second)

    @pytest.mark.parametrize(("seconds", "pictures"), [(0.75, 3), (0.01, 1), (1.5, 6), (1e9, 6)])
    def test_is_no_longer_than_asked_and_has_a_picture_at_least(self, seconds, pictures, policy, tmp_path):
        assert film(ROAD, policy, LEVEL, tmp_path / "film.gif", key=KEY, seconds=seconds) == pictures
        assert len(list(imageio.imiter(tmp_path / "film.gif"))) == pictures

    @pytest.mark.parametrize("name", ["film.avi", "film", "mp4"])
    def test_of_an_unknown_kind_is_refused(self, name, policy, tmp_path):
        with pytest.raises(SamplrError, match=rf"a film is an \.mp4 or a \.gif file, not '{name}'"):
            film(ROAD, policy, LEVEL, tmp_path / name, key=KEY)
        assert contents(tmp_path) == {}

    @pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan")])
    def test_without_pictures_is_refused(self, seconds, policy, tmp_path):
        with pytest.raises(SamplrError, match=f"a film of {seconds:g} seconds has no pictures"):
            film(ROAD, policy, LEVEL, tmp_path / "film.gif", key=KEY, seconds=seconds)
        assert contents(tmp_path) == {}

    @pytest.mark.parametrize("name", ["film.gif", "film.mp4"])
    def test_where_nothing_can_be_written_is_told(self, name, policy, tmp_path):
        (tmp_path / "file").write_text("precious")
        with pytest.raises(SamplrError, match=r"cannot write '.*film\.(gif|mp4)': "):
            film(ROAD, policy, LEVEL, tmp_path / "file" / name, key=KEY)
        assert contents(tmp_path) == {"file": b"precious"}


class Unseen(IcyRoad):
    """A road that nobody has drawn."""

    def render(self, world, state):
        return Environment.render(self, world, state)


def test_a_film_that_fails_leaves_the_one_before(policy, tmp_path):
    (tmp_path / "film.gif").write_bytes(b"precious")
    for name in ("film.gif", "other.gif"):
        with pytest.raises(SamplrError, match="Unseen draws no pictures: give it `render`"):
            film(Unseen(segments=ROAD.segments), policy, LEVEL, tmp_path / name, key=KEY)
    assert contents(tmp_path) == {"film.gif": b"precious"}


# --- The command ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", autouse=True)
def _shared_programs():
    with sharing_programs():
        yield


@pytest.fixture(scope="module")
def run(tmp_path_factory, _shared_programs):
    """The folder of a batch of four runs that has only begun: films need nothing more."""
    path, config = tmp_path_factory.mktemp("film") / "run", tiny_config(ROAD, "dr")
    with RunFolder.open(path, to_json(config), resume=False, may_change=()) as folder:
        folder.save(0, _Progress.fresh(SharedTraining(config)).arrays())
    return path


def refused(said) -> str:
    """The one sentence that a command was refused with."""
    assert said.status == 2
    assert said.out == ""
    assert said.err.startswith("samplr: ")
    assert said.err.count("\n") == 1
    return said.err


class TestCommand:
    @pytest.mark.parametrize("options", [[], ["--student", "3", "--deterministic", "--seed", "7"]])
    def test_films_a_run(self, options, run, tmp_path):
        before = contents(run)
        out = tmp_path / "film.gif"
        said = command("film", run, "--out", out, *options)
        assert said.status == 0
        assert f"Written: {out} (6 pictures of ground_truth)" in said.out.replace("\n", " ")
        assert len(list(imageio.imiter(out))) == 6
        assert contents(run) == before

    def test_films_a_condition(self, run, tmp_path):
        # Ice is blue, and paler where it is ahead; at rate 0 there is none.
        blue = {}
        for rate in ("0", "0.8"):
            out = tmp_path / f"{rate}.gif"
            said = command("film", run, "--out", out, "--suite", "fixed_rates", "--condition", f"q={rate}")
            assert said.status == 0
            assert f"(6 pictures of q={rate})" in said.out
            picture = next(iter(imageio.imiter(out))).astype(int)
            blue[rate] = (picture[..., 2] > picture[..., 0] + 50).mean()
        assert blue["0"] == 0
        assert blue["0.8"] > 0.3

    def test_films_a_level_of_ones_own(self, run, tmp_path):
        (tmp_path / "levels.json").write_text('[{"aleatoric.rate": 0, "aleatoric.bits": [0, 0, 0, 0, 0]}]')
        said = command(
            "film", run, "--out", tmp_path / "f.gif", "--levels", tmp_path / "levels.json", "--seconds", "0.5"
        )
        assert said.status == 0
        assert "(2 pictures of " in said.out

    @pytest.mark.parametrize(
        ("options", "told"),
        [
            (["--condition", "q=7"], "unknown condition 'q=7': choose one of ground_truth\n"),
            (["--suite", "vacation"], "unknown suite 'vacation': choose one of fixed_rates, ground_truth\n"),
            (["--student", "4"], "--student 4: this batch has runs 0 to 3\n"),
            (["--student", "-1"], "--student -1: this batch has runs 0 to 3\n"),
            (["--circuit", "monza.csv"], "--circuit is for runs on black_ice"),
            (["--levels", "nowhere.json"], "cannot read 'nowhere.json'"),
        ],
        ids=lambda value: value[0] if isinstance(value, list) else "",
    )
    def test_is_refused(self, options, told, run, tmp_path):
        assert told in refused(command("film", run, "--out", tmp_path / "film.gif", *options))
        assert contents(tmp_path) == {}

    @pytest.mark.parametrize(
        ("name", "options", "told"),
        [
            ("film.avi", [], "a film is an .mp4 or a .gif file, not 'film.avi'\n"),
            ("film.gif", ["--seconds", "0"], "a film of 0 seconds has no pictures: ask for more than 0\n"),
        ],
    )
    def test_refuses_a_film_that_cannot_be(self, name, options, told, run, tmp_path):
        assert told in refused(command("film", run, "--out", tmp_path / name, *options))
        assert contents(tmp_path) == {}

    def test_evaluating_on_a_circuit_is_refused_too(self, run):
        assert "--circuit is for runs on black_ice" in refused(command("eval", run, "--circuit", "monza.csv"))

    def test_a_folder_without_a_run_is_told(self, tmp_path):
        assert str(tmp_path) in refused(command("film", tmp_path / "nothing", "--out", tmp_path / "film.gif"))
        assert contents(tmp_path) == {}
