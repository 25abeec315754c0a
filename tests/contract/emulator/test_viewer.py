"""The viewer's pages: kinds, entities, queries, who may see them, what may be changed."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

import userlock_emulator
from tests.contract.emulator.conftest import Stub
from tests.contract.emulator.process import EmulatorProcess
from tests.contract.emulator.viewing import VIEWER, Browser, Html
from tests.unit.emulator.builders import PROJECT, GeoPoint, Timestamp, entity, key, value
from userlock_emulator.datastore.protos import CommitRequest, LookupRequest, Message, Mutation

HOSTILE = "\"><script>alert(1)</script><img src=x onerror='alert(2)'>`\\\u202e\x00&lt;"
PAGES = ("kinds", "kind", "entity", "query", "transactions", "faults")


@pytest.fixture
def browser(server: userlock_emulator.Emulator) -> Browser:
    return Browser(server.host)


@pytest.fixture(scope="module")
def running_edit() -> Iterator[userlock_emulator.Emulator]:
    with userlock_emulator.start(project=PROJECT, edit=True) as running:
        yield running


@pytest.fixture
def editable(running_edit: userlock_emulator.Emulator) -> Iterator[tuple[Browser, Stub]]:
    running_edit.reset()
    stub = Stub(running_edit.host)
    yield Browser(running_edit.host), stub
    stub.close()


def put(stub: Stub, *entities: Message) -> None:
    for start in range(0, len(entities), 500):
        stub.call(
            "Commit",
            CommitRequest(
                project_id=PROJECT,
                mode=CommitRequest.NON_TRANSACTIONAL,
                mutations=[Mutation(upsert=each) for each in entities[start : start + 500]],
            ),
        )


def found(stub: Stub, of: Message) -> Message | None:
    response = stub.call("Lookup", LookupRequest(project_id=PROJECT, keys=[of]))
    return response.found[0].entity if response.found else None


def address_of(browser: Browser, text: str, **place: str) -> str:
    """Return the address of an entity's page."""
    answer = browser.get("find", text=text, **place)
    assert answer.status == 303, answer.text
    return answer.headers["Location"]


EVERY_TYPE: dict[str, Any] = {
    "null": None,
    "boolean": True,
    "integer": -(2**63),
    "double": 2.5,
    "when": Timestamp(1_700_000_000_123_456),
    "text": "a text",
    "blob": b"\x00\xff<b>",
    "point": GeoPoint((52.5, 13.4)),
    "inner": {"street": "Main", "deeper": {"still": 1}},
    "list": [1, "two", None, {"three": 3}],
    "reference": key("Learner", 7, namespace="school"),
}


class TestKindsAndEntities:
    def test_nothing_yet(self, browser: Browser) -> None:
        answer = browser.get()
        assert answer.status == 200
        assert "There are no entities." in answer.page.text

    def test_kinds_of_all_partitions_with_counts(self, browser: Browser, stub: Stub) -> None:
        put(stub, *(entity(key("Task", n + 1)) for n in range(3)))
        put(stub, entity(key("Learner", 1, namespace="school")))
        page = browser.get().page
        assert "Project test-project, default namespace" in page.text
        assert "Project test-project, namespace school" in page.text
        kinds = browser.get("kinds.json").document["kinds"]
        assert [(each["namespace"], each["kind"], each["count"]) for each in kinds] == [
            ("", "Task", 3),
            ("school", "Learner", 1),
        ]
        only = browser.get("kinds.json", namespace="school").document["kinds"]
        assert [each["kind"] for each in only] == ["Learner"]

    def test_all_types_of_values(self, browser: Browser, stub: Stub) -> None:
        stored = entity(key("Parent", "p", "Task", 5, namespace="n"), **EVERY_TYPE)
        stored.properties["hidden"].CopyFrom(value("not indexed", indexed=False))
        stored.properties["legacy"].CopyFrom(value("old"))
        stored.properties["legacy"].meaning = 15
        put(stub, stored)
        address = address_of(browser, "Parent, 'p', Task, 5", namespace="n")
        page = browser.get(address).page
        for text in (
            "KEY(PROJECT('test-project'), NAMESPACE('n'), Parent, 'p', Task, 5)",
            "-9223372036854775808", "2.5", "2023-11-14T22:13:20.123456Z", "a text",
            "00 ff 3c 62 3e", "52.5, 13.4", "Main", "still", "unindexed", "meaning 15",
            "geo point", "KEY(PROJECT('test-project'), NAMESPACE('school'), Learner, 7)",
        ):  # fmt: skip
            assert text in page.text, text
        document = browser.get(address.replace("entity?", "entity.json?")).document
        assert document["found"]
        assert document["properties"]["integer"] == {"integerValue": str(-(2**63))}
        assert document["properties"]["hidden"]["excludeFromIndexes"] is True
        assert document["version"] in page.text
        assert document["updateTime"] in page.text
        # The urlsafe key leads to the same page, the reference to a missing entity.
        assert address_of(browser, document["urlsafe"]) == address
        (reference,) = [link for link in page.links("entity") if browser.get(link).status == 404][
            1:
        ]
        assert "There is no such entity." in browser.get(reference).page.text

    def test_a_large_kind_is_paged(self, browser: Browser, stub: Stub) -> None:
        put(stub, *(entity(key("Task", n + 1), n=n) for n in range(120)))
        seen: list[str] = []
        fields, pages = {"kind": "Task", "project": PROJECT}, 0
        while True:
            document = browser.get("kind.json", **fields).document
            page = browser.get("kind", **fields).page
            seen += [each["key"]["path"][0]["id"] for each in document["entities"]]
            pages += 1
            following = page.links("kind?")
            if document["cursor"] is None:
                assert not following
                break
            fields["cursor"] = document["cursor"]
            assert f"cursor={document['cursor']}" in following[0]
        assert pages == 3
        assert [int(each) for each in seen] == list(range(1, 121))

    def test_a_damaged_record_does_not_hide_the_others(
        self, browser: Browser, stub: Stub, server: userlock_emulator.Emulator
    ) -> None:
        put(stub, *(entity(key("Task", n + 1), n=n) for n in range(3)))
        storage = server._storage
        with storage.writer_lock:
            storage._connection.execute(
                "UPDATE entities SET data = x'ffff' WHERE key IN"
                " (SELECT key FROM entities ORDER BY key LIMIT 1)"
            )
        for page in ("kind", "query"):
            fields = {"kind": "Task", "gql": "SELECT * FROM Task"}
            answer = browser.get(page, **fields, project=PROJECT)
            assert answer.status == 200
            assert "The entity cannot be read" in answer.page.text
            assert "Task, 3" in answer.page.text
        assert "cannot be read" in browser.get(address_of(browser, "Task, 1")).page.text

    def test_huge_entities_leave_room_for_the_others(self, browser: Browser, stub: Stub) -> None:
        for n in range(4):
            huge = entity(key("Task", n + 1))
            huge.properties["text"].CopyFrom(value("x" * 900_000, indexed=False))
            put(stub, huge)
        answer = browser.get("kind", kind="Task", project=PROJECT)
        assert len(answer.text) < 20_000
        assert "Not read" in answer.page.text
        assert "900,000 characters" in browser.get(address_of(browser, "Task, 4")).page.text

    def test_many_properties_and_deep_values(self, browser: Browser, stub: Stub) -> None:
        deep: dict[str, Any] = {}
        for _ in range(18):
            deep = {"d": deep}
        many = {f"p{n}": n for n in range(700)}
        put(stub, entity(key("Task", 1), deep=deep, **many))
        text = browser.get(address_of(browser, "Task, 1")).page.text
        assert "more: see the JSON" in text


class TestQueries:
    @pytest.fixture(autouse=True)
    def _tasks(self, stub: Stub) -> None:
        put(stub, *(entity(key("Task", n + 1), n=n, even=n % 2 == 0) for n in range(120)))

    def test_gql_with_pages_and_its_own_limit(self, browser: Browser) -> None:
        fields = {"gql": "SELECT * FROM Task WHERE n >= 5 ORDER BY n DESC LIMIT 70 OFFSET 10"}
        first = browser.get("query.json", **fields).document
        assert [index["properties"] for index in first["indexesUsed"]] == ["(n DESC, __name__ ASC)"]
        page = browser.get("query", **fields).page
        assert "(n DESC, __name__ ASC)" in page.text
        second = browser.get(page.links("query?")[0].replace("query?", "query.json?")).document
        seen = [
            int(each["properties"]["n"]["integerValue"])
            for document in (first, second)
            for each in document["entities"]
        ]
        assert seen == list(range(109, 39, -1))
        assert second["next"] is None

    def test_by_form(self, browser: Browser) -> None:
        fields = {
            "kind": "Task", "p1": "n", "o1": ">", "t1": "integer", "v1": "100",
            "p2": "even", "o2": "=", "t2": "boolean", "v2": "true",
            "order": "n", "direction": "descending",
        }  # fmt: skip
        document = browser.get("query.json", **fields).document
        ids = [each["key"]["path"][0]["id"] for each in document["entities"]]
        assert ids == [str(n + 1) for n in range(118, 100, -2)]
        assert document["query"]["filter"]["compositeFilter"]["op"] == "AND"
        assert "118" in browser.get("query", **fields).page.text

    def test_ancestors_keys_and_projections(self, browser: Browser, stub: Stub) -> None:
        put(stub, entity(key("Task", 1, "Step", "s"), n=1))
        fields = {"kind": "Step", "ancestor": "Task, 1"}
        (step,) = browser.get("query.json", **fields).document["entities"]
        assert step["key"]["path"][-1]["name"] == "s"
        keys = browser.get("query.json", gql="SELECT __key__ FROM Task LIMIT 2").document
        assert [each["properties"] for each in keys["entities"]] == [{}, {}]
        shown = browser.get("query.json", gql="SELECT DISTINCT even FROM Task").document
        assert len(shown["entities"]) == 2
        kinds = browser.get("query", gql="SELECT * FROM __kind__").page
        assert "__kind__, 'Step'" in kinds.text

    @pytest.mark.parametrize(
        "gql",
        [
            "SELECT COUNT(*) AS total FROM Task",
            "AGGREGATE COUNT(*) AS total OVER (SELECT * FROM Task)",
        ],
    )
    def test_aggregations(self, browser: Browser, gql: str) -> None:
        document = browser.get("query.json", gql=gql).document
        assert document["aggregations"] == {"total": {"integerValue": "120"}}
        assert "total" in browser.get("query", gql=gql).page.text

    @pytest.mark.parametrize(
        "fields",
        [
            {"gql": "SELCT <b>"},
            {"gql": "SELECT * FROM Task WHERE n = 1 ORDER BY"},
            {"gql": "SELECT * FROM Task", "seen": "50", "cursor": "AAAA"},
            {"gql": "SELECT * FROM Task", "seen": "-1"},
            {"kind": "Task", "p1": "n", "t1": "integer", "v1": "many"},
            {"kind": "Task", "p1": "n", "o1": "LIKE"},
            {"kind": "Task", "ancestor": "nothing"},
        ],
    )
    def test_errors_are_shown_as_text(self, browser: Browser, fields: dict[str, str]) -> None:
        answer = browser.get("query", **fields)
        assert answer.status == 400
        assert "INVALID_ARGUMENT" in answer.page.text
        assert browser.get("query.json", **fields).document["error"]["message"]

    def test_an_index_that_clients_would_miss_is_named_and_not_added(self, tmp_path: Path) -> None:
        file = tmp_path / "index.yaml"
        gql = "SELECT * FROM Task WHERE a = 1 ORDER BY b"
        for mode in ("enforced", "auto"):
            file.write_text("indexes:\n")
            with userlock_emulator.start(indexes=mode, index_file=file) as running:
                answer = Browser(running.host).get("query", gql=gql)
                assert answer.status == 200
                refused = "no matching index found" in answer.page.text
                assert refused == (mode == "enforced")
                assert file.read_text() == "indexes:\n"


class TestHostileTexts:
    def test_nothing_in_the_data_becomes_markup(
        self, browser: Browser, stub: Stub, server: userlock_emulator.Emulator
    ) -> None:
        texts = {HOSTILE: HOSTILE, "list": [HOSTILE, {HOSTILE: HOSTILE}]}
        put(stub, entity(key(HOSTILE, HOSTILE, namespace="n"), **texts))
        server.faults.abort(kind=HOSTILE)
        where = {"project": PROJECT, "namespace": "n", "kind": HOSTILE}
        fields = [*browser.get().page.links("kind?"), *browser.get("kind", **where).page.links("e")]
        path = VIEWER + quote(HOSTILE, safe="<>\"'`\\;&")
        pages = [browser.get(each) for each in (*fields, "kinds", "faults", path)]
        pages += [
            browser.get("kind", **where),
            browser.get("query", gql=HOSTILE, **where),
            browser.get("query", p1=HOSTILE, v1=HOSTILE, ancestor=HOSTILE, **where),
            browser.get("find", text=HOSTILE),
            browser.get("entity", key=HOSTILE),
            browser.get("kinds", start=HOSTILE),
            browser.get("kinds", done=HOSTILE),
        ]
        assert len(pages) > 10
        for answer in pages:
            page = Html(answer.text)
            assert "\u202e" not in page.text
            assert "\x00" not in page.text
            for tag, attributes in page.elements:
                assert tag not in ("script", "img", "b")
                assert not any(name.startswith("on") for name in attributes)

    def test_headers_keep_scripts_frames_and_caches_away(self, browser: Browser) -> None:
        for page in (*PAGES, "style.css", "nothing", "kinds.json"):
            headers = browser.get(page).headers
            policy = headers["Content-Security-Policy"]
            assert "default-src 'none'" in policy
            assert "script" not in policy
            assert "frame-ancestors 'none'" in policy
            assert headers["X-Content-Type-Options"] == "nosniff"
            assert headers["Cache-Control"] == "no-store"

    def test_a_page_has_no_scripts_and_loads_nothing_from_elsewhere(self, browser: Browser) -> None:
        for page in PAGES:
            for _, attributes in browser.get(page).page.elements:
                assert "style" not in attributes
                for name in ("href", "src", "action"):
                    assert (attributes.get(name) or VIEWER).startswith(VIEWER)

    @pytest.mark.parametrize("path", ["..", "kinds/../../reset", "%2e%2e", "style.css/x", "x.html"])
    def test_other_paths_are_no_pages(self, browser: Browser, path: str) -> None:
        answer = browser.get(VIEWER + path)
        assert answer.status == 404
        assert "There is no such page." in answer.page.text


class TestJson:
    @pytest.mark.parametrize("page", PAGES)
    def test_json_beside_each_page(self, browser: Browser, stub: Stub, page: str) -> None:
        put(stub, entity(key("Task", 1), n=1))
        entity_key = address_of(browser, "Task, 1").partition("key=")[2]
        fields = {"kind": "Task", "key": entity_key, "project": PROJECT}
        one = browser.get(f"{page}.json", **fields)
        other = browser.get(page, **fields, format="json")
        assert one.headers["Content-Type"] == "application/json"
        assert one.status == other.status == browser.get(page, **fields).status == 200
        assert one.document.keys() == other.document.keys()
        (link,) = browser.get(page, **fields).page.links(f"{page}.json")
        assert browser.get(link).document.keys() == one.document.keys()

    def test_errors_too(self, browser: Browser) -> None:
        answer = browser.get("entity.json", key="x")
        assert (answer.status, answer.document) == (400, {"error": "This is not a key."})


class TestAccess:
    @pytest.mark.parametrize(
        "headers",
        [
            {"Host": "evil.example"},
            {"Host": "192.168.0.5:8081"},
            {"Host": "emulator"},
            {"Origin": "http://evil.example"},
            {"Sec-Fetch-Site": "cross-site"},
            {"X-Forwarded-For": "8.8.8.8"},
        ],
    )
    def test_others_are_refused(self, browser: Browser, headers: dict[str, str]) -> None:
        for page in (*PAGES, "style.css", ""):
            assert browser.get_with(headers, page).status == 403

    def test_other_machines_are_refused_where_they_reach_the_port(self) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect(("192.0.2.1", 9))  # sends nothing
            except OSError:
                pytest.skip("this machine has no network")
            own = probe.getsockname()[0]
        if own.startswith("127."):
            pytest.skip("this machine has no network")
        with userlock_emulator.start(host="0.0.0.0") as running:
            port = running.host.rpartition(":")[2]
            assert running.viewer_url == f"http://localhost:{port}/viewer/"
            assert Browser(f"127.0.0.1:{port}").get().status == 200
            away = Browser(f"{own}:{port}")
            assert away.get("/").status == 200
            assert "for this machine only" in away.get().text
            assert away.get_with({"Host": "localhost"}).status == 403

    @pytest.mark.parametrize("page", ["edit", "delete", "new", "reset"])
    def test_read_only_has_no_forms(self, browser: Browser, page: str) -> None:
        assert "start the emulator with --edit" in browser.get(page).page.text
        assert browser.get(page).status == 403
        assert not any(browser.get(each).page.forms() for each in PAGES)

    @pytest.mark.parametrize("form", ["save", "delete", "roll-back", "remove-fault", "reset"])
    def test_read_only_changes_nothing(
        self, browser: Browser, stub: Stub, server: userlock_emulator.Emulator, form: str
    ) -> None:
        put(stub, entity(key("Task", 1), n=1))
        server.faults.unavailable(rpc="AllocateIds")
        answer = browser.post(form, key=address_of(browser, "Task, 1").partition("key=")[2])
        assert answer.status == 403
        assert "--edit" in answer.text
        assert found(stub, key("Task", 1)) is not None
        assert len(server.faults.planted) == 1

    @pytest.mark.parametrize(
        "headers",
        [
            {},
            {"Origin": "http://evil.example"},
            {"Origin": "null"},
            {"Sec-Fetch-Site": "same-site"},
            {"Sec-Fetch-Site": "none"},
        ],
    )
    def test_forms_of_other_pages_are_refused(
        self, editable: tuple[Browser, Stub], headers: dict[str, str]
    ) -> None:
        browser, stub = editable
        put(stub, entity(key("Task", 1), n=1))
        assert browser.post_with(headers, "reset").status == 403
        assert found(stub, key("Task", 1)) is not None

    def test_other_methods_and_forms(self, editable: tuple[Browser, Stub]) -> None:
        browser, _ = editable
        assert browser.post("kinds").status == 404
        assert (
            browser.send("PUT", "/viewer/kinds", None, {"Origin": f"http://{browser.host}"}).status
            == 405
        )


class TestEdits:
    def test_create_edit_and_delete(self, editable: tuple[Browser, Stub]) -> None:
        browser, stub = editable
        text = (
            '{"key": {"path": [{"kind": "Task", "name": "a"}]},'
            ' "properties": {"n": {"integerValue": 1}}}'
        )
        answer = browser.post("save", entity=text, project=PROJECT)
        assert answer.status == 303
        page = browser.get(answer.headers["Location"]).page
        assert "Saved." in page.text
        stored = found(stub, key("Task", "a"))
        assert stored is not None
        assert stored.properties["n"].integer_value == 1

        form = browser.get(page.links("edit")[0]).page
        hidden = form.hidden()
        text = text.replace('"integerValue": 1', '"integerValue": "2", "excludeFromIndexes": true')
        text = text.replace('{"path"', f'{{"partitionId": {{"projectId": "{PROJECT}"}}, "path"')
        assert browser.post("save", entity=text, **hidden).status == 303
        stored = found(stub, key("Task", "a"))
        assert stored is not None
        assert stored.properties["n"] == value(2, indexed=False)

        late = browser.post("save", entity=text, **hidden)
        assert late.status == 409
        assert "has changed since" in late.page.text
        question = browser.get(page.links("delete")[0]).page
        assert question.forms() == {"/viewer/delete"}
        assert found(stub, key("Task", "a")) is not None, "it asks first"
        assert browser.post("delete", **question.hidden()).status == 303
        assert found(stub, key("Task", "a")) is None

    def test_every_type_survives_an_edit(self, editable: tuple[Browser, Stub]) -> None:
        browser, stub = editable
        stored = entity(key("Task", 1), **EVERY_TYPE, odd="a\u202eb\r\n\t\x00<é>")
        put(stub, stored)
        form = browser.get(address_of(browser, "Task, 1").replace("entity", "edit")).page
        assert browser.post("save", entity=form.typed, **form.hidden()).status == 303
        assert found(stub, key("Task", 1)) == stored

    @pytest.mark.parametrize(
        "text",
        [
            "no JSON",
            "{}",
            "[" * 10_000,
            '{"key": {"path": [{"kind": "Task", "id": "9"}]}}',
            '{"properties": {"__bad__": {"integerValue": "1"}}}',
            '{"properties": {"n": {"integerValue": "\\ud800"}}}',
        ],
    )
    def test_what_is_no_entity_comes_back_with_the_error(
        self, editable: tuple[Browser, Stub], text: str
    ) -> None:
        browser, stub = editable
        put(stub, entity(key("Task", 1), n=1))
        hidden = browser.get(address_of(browser, "Task, 1").replace("entity", "edit")).page.hidden()
        if text == "{}":
            hidden = {}
        answer = browser.post("save", entity=text, **hidden)
        assert answer.status == 400
        assert text in answer.page.typed
        stored = found(stub, key("Task", 1))
        assert stored is not None
        assert stored.properties["n"].integer_value == 1

    def test_reset_asks_first(self, editable: tuple[Browser, Stub]) -> None:
        browser, stub = editable
        put(stub, entity(key("Task", 1), n=1))
        assert browser.get("reset").page.forms() == {"/viewer/reset"}
        assert found(stub, key("Task", 1)) is not None
        assert browser.post("reset").status == 303
        assert found(stub, key("Task", 1)) is None

    def test_faults_are_shown_and_removed(
        self, editable: tuple[Browser, Stub], running_edit: userlock_emulator.Emulator
    ) -> None:
        browser, _ = editable
        running_edit.faults.abort(3, kind="Task")
        running_edit.faults.delay(0.5, count=None, rpc="Lookup")
        page = browser.get("faults").page
        assert "Commit of Task" in page.text
        assert "0 of 3" in page.text
        listed = browser.get("faults.json").document["faults"]
        assert [each["fault"] for each in listed] == ["abort", "delay"]
        browser.post("remove-fault", id=str(listed[0]["id"]))
        assert [each.rule.name for each in running_edit.faults.planted] == ["delay"]
        browser.post("remove-fault")
        assert not running_edit.faults.planted


def test_the_command_prints_the_address_and_takes_edit() -> None:
    with EmulatorProcess("--edit") as process:
        assert process.process.stdout is not None
        line = ""
        while not line.startswith("#"):
            line = process.process.stdout.readline()
        assert line == f"# viewer: http://{process.host}/viewer/\n"
        assert "can edit" in Browser(process.host).get().page.text
