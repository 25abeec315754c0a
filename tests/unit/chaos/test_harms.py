"""The faults of a chaos run follow from its seed."""

from __future__ import annotations

import itertools

import pytest

from tests.chaos import harms
from tests.chaos.harms import FAULTS, LOSSES, TROUBLES, Deed, Harm, deeds


def first(seed: str, harm: Harm) -> list[Deed]:
    return list(itertools.islice(deeds(seed, harm), 500))


@pytest.mark.parametrize("harm", Harm)
def test_the_same_for_the_same_seed(harm: Harm) -> None:
    assert first("1", harm) == first("1", harm)
    assert first("1", harm) != first("2", harm)


def test_all_kinds_occur() -> None:
    done = {harm: first("1", harm) for harm in Harm}
    assert {deed.what for harm in Harm for deed in done[harm]} == {
        *LOSSES,
        *TROUBLES,
        *FAULTS,
        harms.CLOCK_SET,
        harms.PROCESS_STOPPED,
        harms.PROCESS_KILLED,
        harms.EMULATOR_KILLED,
    }
    offsets = {deed.offset for deed in done[Harm.NETWORK]}
    assert min(offsets) < 0 < max(offsets)
    assert {deed.cuts for deed in done[Harm.NETWORK]} == {True, False}


@pytest.mark.parametrize("harm", Harm)
def test_the_frequency(harm: Harm) -> None:
    least, most = harm.value
    assert all(least <= deed.pause <= most for deed in first("1", harm))
