"""samplr: reinforcement learning with adaptive curricula that stay grounded."""

from samplr.config import METHODS as METHODS
from samplr.config import Config as Config
from samplr.config import default_config as default_config
from samplr.envs.api import Environment as Environment
from samplr.envs.api import GroundedEnvironment as GroundedEnvironment
from samplr.envs.api import Level as Level
from samplr.envs.api import TimeStep as TimeStep
from samplr.errors import SamplrError as SamplrError
from samplr.evaluation import evaluate as evaluate
from samplr.run import Policy as Policy
from samplr.run import Run as Run
from samplr.run import load as load
from samplr.run import train as train
from samplr.version import __version__ as __version__
