"""Test each command on each real store."""

from __future__ import annotations

import re

from tests.contract.cli.conftest import Scene
from userlock.lock.lease import Lost
from userlock.waits import run


def test_holder(scene: Scene) -> None:
    scene.hold("ann", "POST /answers")
    scene.wait("ann", "GET /badges")
    code, out, err = scene.cli.run("holder", "ann")
    assert (code, err) == (0, "")
    assert "ann: held" in out
    assert "POST /answers" in out
    assert "GET /badges" in out
    found = scene.cli.run("holder", "ann", "--json").document
    assert found["holder"]["request"] == "POST /answers"
    assert [each["process"] for each in found["waiters"]] == ["web-2/12"]
    if "protocol=text" in scene.cli.url:
        assert found["seconds_left"] is None
    else:
        assert 40 < found["seconds_left"] <= 65


def test_break(scene: Scene) -> None:
    lease = scene.hold("ann")
    scene.wait("ann")
    assert scene.cli.run("break", "ann").code == 2
    found = scene.cli.run("break", "ann", "--yes", "--by", "olga", "--json")
    assert found.code == 0
    assert found.document["broken"] is True
    assert found.err.startswith("lock 'ann' broken by olga; it was held by ")
    assert run(scene.service.give_back, lease) == Lost("broken", None, "olga")
    assert scene.cli.run("break", "ann", "--yes").code == 1


def test_locks(scene: Scene) -> None:
    scene.hold("ann", "POST /answers")
    scene.wait("ann", "GET /badges")
    scene.hold("carl")
    odd = "a/b \N{SNOWMAN}"
    scene.hold(odd)
    scene.wait(odd)
    code, out, err = scene.cli.run("locks", "--contended")
    assert (code, err) == (0, "")
    assert "3 held, 2 contended" in out
    assert "carl" not in out
    found = scene.cli.run("locks", "--json").document
    assert found["held"] == 3
    names = {each["lock_id"] or each["hash"][:7] for each in found["locks"]}
    # Redis accepts any id.
    assert names in ({"ann", "carl", "sha256:"}, {"ann", "carl", odd})


def test_the_locks_of_other_deployments_are_not_listed(scene: Scene) -> None:
    scene.hold("ann")
    # The other prefix begins with this one.
    other = re.sub("prefix=[^&]+", lambda prefix: prefix[0][:-1], scene.cli.url)
    found = scene.cli.run("locks", "--json", "--store", other).document
    assert found["locks"] == []


def test_doctor(scene: Scene) -> None:
    found = scene.cli.run("doctor", "--json")
    assert found.code == 0
    findings = {each["subject"]: each for each in found.document["findings"]}
    for name in ("reachable", "records", "clock", "latency"):
        assert findings[name]["verdict"] == "ok"
    if "datastore:" not in scene.cli.url:
        assert findings["evictions"]["says"] == "none"
    left = scene.cli.run("locks", "--json").document
    assert left["locks"] == [], "it leaves nothing behind"


def test_a_lock_id_that_is_no_unicode(on_memcached: Scene) -> None:
    on_memcached.hold("\udcff")
    assert on_memcached.cli.shell("userlock holder $'\\xff'").code == 0


def test_a_terminal_that_has_only_ascii(on_memcached: Scene) -> None:
    on_memcached.hold("é", "GET /日本")
    code, out, _ = on_memcached.cli.run("holder", "é", env={"PYTHONIOENCODING": "ascii"})
    assert code == 0
    assert "\\xe9: held" in out
