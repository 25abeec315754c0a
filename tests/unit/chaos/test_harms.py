"""The faults of a chaos run follow from its seed and its kind of store."""

from __future__ import annotations

import itertools

import pytest

from tests.chaos import harms
from tests.chaos.harms import Deed, Harm, deeds
from tests.chaos.network import Trouble
from tests.chaos.stores import STORES

MEMCACHED = STORES["memcached"]
PARTS = [(store, harm) for store, kind in STORES.items() for harm in sorted(kind.harms, key=str)]


def first(seed: str, harm: Harm, store: str = "memcached") -> list[Deed]:
    return list(itertools.islice(deeds(seed, harm, STORES[store].faults[harm]), 500))


@pytest.mark.parametrize("harm", Harm)
def test_the_same_for_the_same_seed(harm: Harm) -> None:
    assert first("1", harm) == first("1", harm)
    assert first("1", harm) != first("2", harm)


@pytest.mark.parametrize(("store", "harm"), PARTS)
def test_all_faults_that_apply_occur_and_no_others(store: str, harm: Harm) -> None:
    assert {deed.what for deed in first("1", harm, store)} == set(STORES[store].faults[harm])


def test_the_variety_of_the_network() -> None:
    done = first("1", Harm.NETWORK)
    offsets = {deed.offset for deed in done}
    assert min(offsets) < 0 < max(offsets)
    assert {deed.cuts for deed in done} == {True, False}


@pytest.mark.parametrize("harm", Harm)
def test_the_frequency(harm: Harm) -> None:
    least, most = harm.value
    assert all(least <= deed.pause <= most for deed in first("1", harm))


WAKE_UPS_LOST = Trouble.WAKE_UPS_LOST.value


@pytest.mark.parametrize("store", STORES)
def test_each_fault_of_the_store_has_its_excuse(store: str) -> None:
    """It either loses data or excuses a lost order. Other faults excuse nothing."""
    kind = STORES[store]
    # Waiters whose wake-ups are lost poll in time.
    of_store = {*kind.faults[Harm.STORE], *kind.faults[Harm.NETWORK]} - {WAKE_UPS_LOST}
    assert WAKE_UPS_LOST not in kind.loses | kind.troubles
    assert of_store <= kind.loses | kind.troubles
    assert not kind.loses & kind.troubles
    elsewhere = {*kind.faults[Harm.PROCESSES], *kind.faults[Harm.EMULATOR]}
    assert not elsewhere & (kind.loses | kind.troubles)


def test_nothing_excuses_two_holders_in_datastore() -> None:
    assert not STORES["datastore"].loses
    assert harms.EMULATOR_KILLED in STORES["datastore"].faults[Harm.STORE]
