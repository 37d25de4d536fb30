"""Driving: the rules one by one, on a small round track."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from samplr.compiling import jit
from samplr.envs.black_ice.contacts import tile_geometry, touching
from samplr.envs.black_ice.driving import Road, Rules, begin, cut_off, drive, drive_one_frame
from samplr.envs.black_ice.physics import hull_origin
from samplr.envs.black_ice.tracks import track_along

TILES, RADIUS, FRAMES = 40, 50.0, 120
TRAINING, EVALUATION = Rules(), Rules(out_of_bounds_reward=-100.0, idle_limit=0)
FAR, LONG = 1000.0, 100_000
PARKED, FULL_GAS = (0.0, 0.0, 0.0), (0.0, 1.0, 0.0)
GENTLY = (0.0, 0.1, 0.0)  # slow enough for a wheel's edge to be on a tile some frames before its centre is
DRY = np.zeros(TILES, bool)
TILE = 1000 / TILES


def ice_on(*tiles):
    icy = DRY.copy()
    icy[list(tiles)] = True
    return icy


def leaves_as_bytes(tree):
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree)]


@pytest.fixture(scope="module")
def round_track():
    """Forty tiles of nearly 8 u, driven counter-clockwise from (50, 0): a car at a point touches two of them."""
    angle = 2 * np.pi * np.arange(TILES) / TILES
    centre = jnp.asarray(RADIUS * np.stack([np.cos(angle), np.sin(angle)], axis=1), jnp.float32)

    def prepare(centre):
        track = track_along(centre)
        tiles = tile_geometry(track.tiles)
        return tiles, {rule: begin(track, tiles, TRAINING, rule) for rule in ("nearest", "min")}

    return jit(prepare, runs_once=True)(centre)


@pytest.fixture(scope="module")
def road(round_track):
    def make(playfield=FAR, frame_limit=LONG):
        return Road(round_track[0], jnp.float32(playfield), jnp.int32(frame_limit))

    return make


@pytest.fixture(scope="module")
def start(round_track):
    return round_track[1]["nearest"]


@pytest.fixture(scope="module")
def frame_by_frame():
    """Drive under one action, rules and ice; what each of 120 frames led to and paid, whether or not it had ended."""
    programs = {}

    def play(road, start, action, icy=DRY, rules=TRAINING, rule="nearest"):
        def program(road, start, action, icy):
            def frame(now, _):
                after, reward = drive_one_frame(road, now, action, icy, rules, rule)
                return after, (after, reward)

            return jax.lax.scan(frame, start, None, length=FRAMES)[1]

        key = (rules == TRAINING, rule)
        if key not in programs:
            programs[key] = jit(program, runs_once=True)
        drives, rewards = programs[key](road, start, jnp.array(action), jnp.asarray(icy))
        return drives, np.asarray(rewards)

    return play


@pytest.fixture(scope="module")
def action_by_action():
    """Sixteen times the same action of eight frames; the drives, beginning with the start, and what each earned."""

    def program(road, start, action, icy):
        def act(now, _):
            after, reward = drive(road, now, action, icy, TRAINING, "nearest")
            return after, (after, reward)

        return jax.lax.scan(act, start, None, length=16)[1]

    compiled = jit(program, runs_once=True)

    def play(road, start, action, icy=DRY):
        drives, rewards = compiled(road, start, jnp.array(action), jnp.asarray(icy))
        everything = jax.tree.map(lambda first, rest: np.concatenate([np.asarray(first)[None], rest]), start, drives)
        return [jax.tree.map(lambda leaf, i=i: leaf[i], everything) for i in range(17)], np.asarray(rewards)

    return play


def at(drives, index):
    return jax.tree.map(lambda leaf: leaf[index], drives)


class TestReward:
    def test_the_car_starts_at_rest_on_two_tiles_whose_reward_is_pending(self, start):
        np.testing.assert_array_equal(np.flatnonzero(start.visited), [0, 1])
        assert start.pending == pytest.approx(2 * TILE)
        assert not np.asarray(start.revealed).any()
        assert int(start.frame) == 0

    def test_the_first_frame_pays_for_the_start_and_the_others_of_a_parked_car_only_cost(
        self, road, start, frame_by_frame
    ):
        _, rewards = frame_by_frame(road(), start, PARKED)
        assert rewards[0] == pytest.approx(2 * TILE - 0.1)
        assert rewards[1:] == pytest.approx(-0.1)

    def test_every_new_tile_pays_its_part_of_1000_and_every_frame_costs_a_tenth(self, road, start, frame_by_frame):
        drives, rewards = frame_by_frame(road(), start, FULL_GAS)
        visited = np.concatenate([np.asarray(start.visited)[None], drives.visited])
        new = (visited[1:] & ~visited[:-1]).sum(axis=1)
        pending = np.concatenate([[2 * TILE], np.zeros(FRAMES - 1)])
        np.testing.assert_allclose(rewards, TILE * new - 0.1 + pending, atol=1e-4)
        # Straight on from the start of a round track, the car passes a few tiles and then goes off the road.
        passed = np.flatnonzero(visited[-1])
        np.testing.assert_array_equal(passed, np.arange(len(passed)))
        assert 4 <= len(passed) <= 6
        assert rewards.sum() == pytest.approx(TILE * len(passed) - 0.1 * FRAMES, abs=1e-3)

    def test_an_action_earns_what_its_frames_do(self, road, start, frame_by_frame, action_by_action):
        _, by_frame = frame_by_frame(road(), start, FULL_GAS)
        drives, by_action = action_by_action(road(), start, FULL_GAS)
        np.testing.assert_allclose(by_action[:15], by_frame.reshape(15, 8).sum(axis=1), atol=1e-3)
        assert [int(drive.frame) for drive in drives] == [8 * i for i in range(17)]


class TestEarlyStop:
    def test_a_parked_car_is_stopped_after_100_idle_frames_the_first_frame_not_counted(
        self, road, start, frame_by_frame
    ):
        drives, _ = frame_by_frame(road(), start, PARKED)
        # The start's tiles are paid in frame 1, so frames 2 to 101 are the idle ones.
        np.testing.assert_array_equal(drives.idle, np.arange(FRAMES))
        np.testing.assert_array_equal(drives.terminated, np.arange(1, FRAMES + 1) >= 101)
        assert not np.asarray(drives.lap).any()

    def test_in_the_middle_of_an_action(self, road, start, action_by_action):
        drives, rewards = action_by_action(road(), start, PARKED)
        assert [bool(drive.terminated) for drive in drives] == [False] * 13 + [True] * 4
        assert int(drives[13].frame) == 101
        assert rewards.sum() == pytest.approx(2 * TILE - 10.1, abs=1e-3)

    def test_a_new_tile_begins_the_count_anew(self, road, start, frame_by_frame):
        drives, _ = frame_by_frame(road(), start, FULL_GAS)
        visited = np.concatenate([np.asarray(start.visited)[None], drives.visited])
        found = (visited[1:] & ~visited[:-1]).any(axis=1)
        found[0] = True
        idle = np.asarray(drives.idle)
        assert (idle[found] == 0).all()
        assert (np.diff(idle)[~found[1:]] == 1).all()

    def test_not_under_the_rules_of_evaluation(self, road, start, frame_by_frame):
        # However long it has stood already.
        for waited in (0, 100, 100_000):
            waiting = eqx.tree_at(lambda d: d.idle, start, jnp.int32(waited))
            drives, rewards = frame_by_frame(road(), waiting, PARKED, rules=EVALUATION)
            assert not np.asarray(drives.terminated).any()
            assert rewards.sum() == pytest.approx(2 * TILE - 0.1 * FRAMES, abs=1e-3)


class TestTheEnd:
    def test_the_frame_limit_cuts_off_in_the_middle_of_an_action_and_does_not_terminate(
        self, road, start, frame_by_frame, action_by_action
    ):
        by_frame, paid = frame_by_frame(road(), start, FULL_GAS)
        drives, rewards = action_by_action(road(frame_limit=13), start, FULL_GAS)
        assert [int(drive.frame) for drive in drives[:4]] == [0, 8, 13, 13]
        assert not any(drive.terminated for drive in drives)
        assert rewards[:2] == pytest.approx([paid[:8].sum(), paid[8:13].sum()], abs=1e-3)
        np.testing.assert_allclose(drives[2].car.position, by_frame.car.position[12], atol=1e-4)

    @pytest.mark.parametrize("end", ["limit", "idle"])
    def test_nothing_changes_after_it(self, end, road, start, action_by_action):
        tired = eqx.tree_at(lambda d: (d.idle, d.pending), start, (jnp.int32(97), 0 * start.pending))
        limit = 3 if end == "limit" else LONG
        # Too short a time to reach another tile, even with full gas.
        drives, rewards = action_by_action(road(frame_limit=limit), tired if end == "idle" else start, FULL_GAS)
        assert bool(drives[1].terminated) == (end == "idle")
        assert int(drives[1].frame) == 3
        assert rewards[0] == pytest.approx(-0.3 + (0 if end == "idle" else 2 * TILE), abs=1e-4)
        assert (rewards[1:] == 0).all()
        for after in drives[2:]:
            assert leaves_as_bytes(after) == leaves_as_bytes(drives[1])

    def test_an_idle_drive_is_cut_off_if_the_rules_say_so(self, road, start):
        rules = Rules(idle_truncates=True)
        tired = eqx.tree_at(lambda d: (d.idle, d.pending), start, (jnp.int32(97), 0 * start.pending))
        ended, reward = drive(road(), tired, jnp.array(FULL_GAS), DRY, rules, "nearest")
        assert int(ended.frame) == 3
        assert float(reward) == pytest.approx(-0.3, abs=1e-4)
        assert bool(cut_off(road(), ended, rules))
        assert not bool(ended.terminated)
        assert not bool(cut_off(road(), tired, rules))
        assert not bool(cut_off(road(), ended, TRAINING))  # there it is terminated instead

    def test_the_limit_of_frames_terminates_if_the_rules_say_so(self, road, start):
        short = road(frame_limit=13)
        for rules, terminates in ((TRAINING, False), (Rules(limit_truncates=False), True)):
            before, _ = drive(short, start, jnp.array(FULL_GAS), DRY, rules, "nearest")
            after, _ = drive(short, before, jnp.array(FULL_GAS), DRY, rules, "nearest")
            assert [int(before.frame), int(after.frame)] == [8, 13]
            assert not bool(before.terminated | cut_off(short, before, rules))
            assert (bool(after.terminated), bool(cut_off(short, after, rules))) == (terminates, not terminates)

    @pytest.mark.parametrize("end", ["limit", "left", "lap", "idle"])
    def test_a_bonus_is_paid_once_to_whoever_did_not_stand_idle(self, end, road, start):
        place = {"limit": road(frame_limit=3), "left": road(playfield=10.0)}.get(end, road())
        now = eqx.tree_at(lambda d: d.pending, start, 0 * start.pending)
        if end == "lap":
            now = eqx.tree_at(lambda d: d.visited, now, jnp.asarray(~ice_on(0)))
        if end == "idle":
            now = eqx.tree_at(lambda d: d.idle, now, jnp.int32(97))
        paid = {}
        for bonus in (0.0, 100.0):
            after, paid[bonus] = drive(place, now, jnp.array(PARKED), DRY, Rules(end_bonus=bonus), "nearest")
            assert bool(after.terminated | cut_off(place, after, TRAINING))
            assert float(drive(place, after, jnp.array(PARKED), DRY, Rules(end_bonus=bonus), "nearest")[1]) == 0
        assert float(paid[100.0] - paid[0.0]) == pytest.approx(0 if end == "idle" else 100)

    def test_a_bonus_can_make_up_for_the_price_of_leaving(self, road, start):
        rules = Rules(end_bonus=100.0, out_of_bounds_reward=-100.0)
        after, reward = drive(road(playfield=10.0), start, jnp.array(PARKED), DRY, rules, "nearest")
        assert bool(after.terminated)
        assert float(reward) == 0

    @pytest.mark.parametrize("rules", [TRAINING, EVALUATION], ids=["training", "evaluation"])
    def test_leaving_the_playfield_terminates(self, rules, road, start, frame_by_frame):
        # The car starts at (50, 0) and drives along y: it leaves where y is more than 60.
        drives, rewards = frame_by_frame(road(playfield=60.0), start, FULL_GAS, rules=rules)
        out = (np.abs(jax.vmap(hull_origin)(drives.car)) > 60.0).any(axis=1)
        left = int(np.argmax(out))
        assert 20 < left < FRAMES - 1
        np.testing.assert_array_equal(drives.terminated, out)
        assert not np.asarray(drives.lap).any()
        _, inside = frame_by_frame(road(), start, FULL_GAS, rules=rules)
        np.testing.assert_array_equal(rewards[:left], inside[:left])
        # In training that frame pays as any other; under evaluation it pays −100 and nothing else.
        expected = inside[left] if rules == TRAINING else -100.0
        assert rewards[left] == pytest.approx(expected)

    def test_the_playfield_ends_on_all_sides(self, round_track, road, frame_by_frame):
        # The other way round the track: from (−50, 0) along −y.
        angle = np.pi + 2 * np.pi * np.arange(TILES) / TILES
        track = track_along(jnp.asarray(RADIUS * np.stack([np.cos(angle), np.sin(angle)], axis=1), jnp.float32))
        start = begin(track, tile_geometry(track.tiles), TRAINING, "nearest")
        drives, _ = frame_by_frame(road(playfield=60.0), start, FULL_GAS)
        out = (np.abs(jax.vmap(hull_origin)(drives.car)) > 60.0).any(axis=1)
        assert 20 < int(np.argmax(out)) < FRAMES - 1
        np.testing.assert_array_equal(drives.terminated[out], True)

    def test_a_new_tile_in_the_frame_that_leaves_the_playfield_pays_in_training_alone(
        self, road, start, frame_by_frame
    ):
        fresh = eqx.tree_at(lambda d: (d.visited, d.pending), start, (jnp.zeros(TILES, bool), 0 * start.pending))
        for rules, expected in ((TRAINING, 2 * TILE - 0.1), (EVALUATION, -100.0)):
            drives, rewards = frame_by_frame(road(playfield=10.0), fresh, PARKED, rules=rules)
            assert drives.terminated[0]
            assert rewards[0] == pytest.approx(expected)


class TestLap:
    def visited_but(self, start, *tiles):
        return eqx.tree_at(lambda d: (d.visited, d.pending), start, (jnp.asarray(~ice_on(*tiles)), 0 * start.pending))

    def test_by_visiting_the_last_tile_that_was_left(self, road, start, frame_by_frame):
        drives, rewards = frame_by_frame(road(), self.visited_but(start, 2), FULL_GAS)
        arrived = int(np.argmax(drives.visited[:, 2]))
        assert arrived > 0
        np.testing.assert_array_equal(np.flatnonzero(drives.lap)[0], arrived)
        assert not np.asarray(drives.terminated[:arrived]).any()
        assert drives.terminated[arrived]
        assert rewards[arrived] == pytest.approx(TILE - 0.1, abs=1e-4)

    @pytest.mark.parametrize(
        ("left", "lap"),
        [
            ((0, 20), True),  # then 39 of 40 are visited
            ((0, 20, 25), False),  # 38 of 40 are 95 %, and it takes more
            ((1, 20), False),  # 39 of 40, but it is not tile 0 that is new
            ((20,), False),  # 39 of 40, and the car stands on tile 0, which is not new
        ],
    )
    def test_by_coming_back_to_tile_0_with_more_than_95_percent(self, left, lap, road, start, frame_by_frame):
        drives, rewards = frame_by_frame(road(), self.visited_but(start, *left), PARKED)
        assert bool(drives.lap[0]) == bool(drives.terminated[0]) == lap
        new = sum(tile in (0, 1) for tile in left)
        assert rewards[0] == pytest.approx(TILE * new - 0.1, abs=1e-4)


@pytest.fixture(scope="module")
def dry_and_icy(road, start, frame_by_frame):
    return [frame_by_frame(road(), start, GENTLY, icy)[0] for icy in (DRY, ice_on(3))]


@pytest.fixture(scope="module")
def stood_on(dry_and_icy, road, start):
    """The frames at whose beginning a wheel touched tile 3, and those at which its centre was on it."""
    everything = jax.tree.map(
        lambda first, rest: np.concatenate([np.asarray(first)[None], rest]), start.car, dry_and_icy[0].car
    )
    tiles = road().tiles
    contacts = jit(jax.vmap(lambda car: touching(tiles, car)), runs_once=True)(everything)
    touched = np.asarray(contacts.outside < np.inf)[:FRAMES, :, 3]
    centred = np.asarray(jax.vmap(lambda c: c.nearest)(contacts))[:FRAMES] == 3
    return touched.any(axis=1), (touched & centred).any(axis=1)


class TestContactsAreAFrameOld:
    def test_ice_under_a_wheel_changes_motion_from_the_next_frame_on(self, dry_and_icy, stood_on):
        dry, icy = (drives.car for drives in dry_and_icy)
        first = int(np.argmax(stood_on[1]))
        assert first > 20
        for frame in (first - 1, first):
            assert leaves_as_bytes(at(dry, slice(frame + 1))) == leaves_as_bytes(at(icy, slice(frame + 1)))
        assert not np.array_equal(dry.omega[first + 1], icy.omega[first + 1])

    def test_a_tile_is_revealed_when_it_has_acted_and_not_when_it_is_touched(self, dry_and_icy, stood_on):
        touched, centred = (int(np.argmax(frames)) for frames in stood_on)
        assert touched < centred  # its edge comes before its centre
        for drives in dry_and_icy:
            assert int(np.argmax(drives.visited[:, 3])) == touched
            assert int(np.argmax(drives.revealed[:, 3])) == centred + 1

    def test_where_all_that_is_touched_acts_it_is_revealed_a_frame_after_it_is_touched(
        self, road, round_track, stood_on, frame_by_frame
    ):
        drives, _ = frame_by_frame(road(), round_track[1]["min"], GENTLY, rule="min")
        touched = int(np.argmax(stood_on[0]))
        assert int(np.argmax(drives.visited[:, 3])) == touched
        assert int(np.argmax(drives.revealed[:, 3])) == touched + 1

    def test_only_what_was_visited_is_revealed(self, dry_and_icy):
        for drives in dry_and_icy:
            revealed, visited = np.asarray(drives.revealed), np.asarray(drives.visited)
            assert not (revealed & ~visited).any()
            # And nothing that was revealed is forgotten.
            assert not (revealed[:-1] & ~revealed[1:]).any()

    def test_the_ice_of_the_start_acts_in_the_first_frame(self, road, start, frame_by_frame):
        # The simulator's reset runs a frame, whose contacts the first frame of the drive finds.
        dry, _ = frame_by_frame(road(), start, FULL_GAS)
        icy, _ = frame_by_frame(road(), start, FULL_GAS, ice_on(0))
        np.testing.assert_array_equal(np.flatnonzero(dry.revealed[0]), [0, 1])
        assert not np.array_equal(dry.car.omega[0], icy.car.omega[0])

    def test_a_car_on_ice_stays_where_it_is(self, road, start, frame_by_frame):
        drives, _ = frame_by_frame(road(), start, FULL_GAS, ~DRY)
        np.testing.assert_allclose(drives.car.position[-1], start.car.position, atol=1e-3)
        assert (np.asarray(drives.car.omega)[-1, 2:] > 100).all()  # its wheels spin
