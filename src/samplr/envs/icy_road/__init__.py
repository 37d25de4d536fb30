"""The exactly solvable laboratory world, with its Bayes-optimal solution."""

from samplr.envs.icy_road.world import IcyRoad as IcyRoad
from samplr.envs.icy_road.world import IcyRoadPosterior as IcyRoadPosterior
