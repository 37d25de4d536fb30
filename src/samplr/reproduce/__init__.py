"""The paper's experiments, each as one command that can be stopped, resumed and added to."""

from samplr.reproduce.command import reproduce as reproduce
from samplr.reproduce.controlled import CONTROLLED
from samplr.reproduce.fruit import FRUIT
from samplr.reproduce.sketch import SKETCH
from samplr.reproduce.studies import Study
from samplr.reproduce.table1 import TABLE1
from samplr.reproduce.theory import THEORY

STUDIES: dict[str, Study] = {study.name: study for study in (THEORY, TABLE1, CONTROLLED, SKETCH, FRUIT)}
