"""The emulator's packages know only those below, and no imports form a cycle."""

from tools import structure

SOURCES = structure.sources("emulator")
# The servers do not know each other, nor does the port know them.
BELOW = {
    "port": set(),
    "memcache": set(),
    "datastore": {"port"},
    "tasks": {"port"},
}


def package_of(name: str) -> str:
    _, _, inside = name.partition("userlock_emulator.")
    return inside.partition(".")[0] if inside.partition(".")[0] in BELOW else ""


def test_packages_know_only_those_below() -> None:
    for module, path in SOURCES.items():
        package = package_of(module)
        for name in structure.imported(path):
            assert not (name.startswith("grpc") and package in ("datastore", "tasks")), module
            if package and package_of(name):
                assert package_of(name) in {package, *BELOW[package]}, f"{module} imports {name}"


def test_no_imports_form_a_cycle() -> None:
    assert structure.cycles(structure.arrows(SOURCES)) == []
