"""Automatic ids: spread out, and never repeated."""

import itertools

from userlock_emulator.datastore.ids import scatter


def test_scattering_is_a_bijection_within_52_bits() -> None:
    ids = {scatter(number) for number in range(1, 100_000)}
    assert len(ids) == 99_999
    assert all(0 < number < 2**52 for number in ids)


def test_consecutive_ids_are_far_apart() -> None:
    ids = [scatter(number) for number in range(1, 1000)]
    gaps = [abs(one - other) for one, other in itertools.pairwise(ids)]
    assert min(gaps) > 2**30
    # Spread over the whole range: each tenth of it gets its share.
    tenths = [number * 10 >> 52 for number in ids]
    assert all(tenths.count(tenth) > 70 for tenth in range(10))
