"""The command `python -m tools.traffic`."""

from __future__ import annotations

import json

import pytest

from tools.traffic.__main__ import main
from tools.traffic.sizing import item_bytes


def test_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--users", "10_000", "--users", "1_000_000", "--sample", "100"]) == 0
    shown = capsys.readouterr().out
    assert "10,000 users" in shown
    assert "1,000,000 users" in shown
    for label in ("locks that were not free", "sweep: duration", "connections to each memcached"):
        assert label in shown
    assert "lognormal, median 8, sigma 1.4" in shown


def test_json_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--users", "100000000", "--sample", "100", "--json"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    facts = json.loads(line)
    assert facts["users"] == 100_000_000
    assert facts["sampled"] is True
    assert facts["operations_per_second_peak"] > facts["operations_per_second"] > 1_000


def test_a_sweep_by_day_adds_to_the_peak(capsys: pytest.CaptureFixture[str]) -> None:
    peaks = []
    for hour in ("2", "18"):
        assert main(["--users=10000000", "--sample=100", "--sweep-at", hour, "--json"]) == 0
        peaks.append(json.loads(capsys.readouterr().out)["operations_per_second_peak"])
    assert peaks[1] > 1.3 * peaks[0]


@pytest.mark.parametrize("users", ["10", "many", "-5"])
def test_a_site_without_users_is_refused(users: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--users", users])
    assert "--users" in capsys.readouterr().err


def test_a_record_takes_a_chunk_that_it_fits_in() -> None:
    assert item_bytes(lock_id="a") < item_bytes(lock_id="a" * 100)
    assert item_bytes() % 8 == 0
