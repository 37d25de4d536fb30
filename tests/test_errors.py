"""Errors: one sentence, wherever they were raised."""

import pickle

from samplr.errors import UnknownNameError


def test_an_unknown_name_says_the_same_in_another_process() -> None:
    error = UnknownNameError("suite", "f2", ["ground_truth", "f1"])
    assert str(error) == "unknown suite 'f2': choose one of f1, ground_truth"
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
