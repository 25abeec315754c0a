"""The printed structure of a sample package."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import structure


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(structure, "ROOT", tmp_path)
    (tmp_path / "house" / "cellar").mkdir(parents=True)
    return tmp_path / "house"


def write(package: Path, **sources: str) -> None:
    for name, source in {"__init__": "", "cellar/__init__": "", **sources}.items():
        (package / f"{name.replace('__in__', '/')}.py").write_text(source)


def test_an_import_for_a_type_checker_closes_a_cycle(package: Path) -> None:
    write(
        package,
        roof="from house import wall\n",
        wall="import typing\nif typing.TYPE_CHECKING:\n    from house.roof import Tile\n",
        cellar__in__floor="import os\n",
    )
    graph = structure.arrows(structure.sources("house"))
    assert graph["house.roof"] == {"house.wall"}
    assert structure.cycles(graph) == [["house.roof", "house.wall"]]


def test_one_way_is_none(package: Path) -> None:
    write(
        package,
        roof="def f():\n    from house.wall import stone\n",
        wall="from house.cellar.floor import ground as under\n",
        cellar__in__floor="ground = 1\n",
    )
    graph = structure.arrows(structure.sources("house"))
    assert structure.cycles(graph) == []
    assert structure.floors(graph) == 3


def test_two_cycles_and_a_path_between(package: Path) -> None:
    graph = {"a": {"b"}, "b": {"a", "c"}, "c": {"d"}, "d": {"e"}, "e": {"c"}, "f": set[str]()}
    assert structure.cycles(graph) == [["c", "d", "e"], ["a", "b"]]
    assert structure.floors(graph) == 2


def test_it_is_printed(package: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(package, roof="from house import wall\n", wall="from house import roof\n")
    structure.main("house")
    said = capsys.readouterr().out
    assert "house                         4       2       2" in said
    assert "1 cycles of imports:\n  2: roof, wall\n" in said


def test_private_attributes_of_another_file(package: Path) -> None:
    write(
        package,
        roof="class Roof:\n    _tiles = 1\n    def f(self):\n        self._wood = 2\n",
        wall="def f(roof):\n    roof._tiles += roof._wood + roof._key + roof._strange\n",
        cellar__in__floor="class Floor:\n    _a = 1\n    def f(self, other):\n        other._a\n",
    )
    found = structure.private_accesses(structure.sources("house"))
    assert found == ["house.wall:2 _tiles (house.roof)", "house.wall:2 _wood (house.roof)"]
