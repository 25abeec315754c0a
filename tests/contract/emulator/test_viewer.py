"""The viewer: from kinds to entities, queries, who may see it, edits, transactions, faults."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator, Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest

import userlock_emulator
from tests.contract.emulator.conftest import Answer, Stub, ask
from tests.unit.emulator.builders import PROJECT, GeoPoint, Timestamp, entity, key, value
from tests.unit.emulator.waiting import Started
from tests.waiting import wait_until
from userlock_emulator.datastore.protos import Mutation

VIEWER = "/viewer/"
_VOID = {"br", "input", "link", "meta"}


class Html(HTMLParser):
    """A page as a browser reads it. It fails for elements that are not closed in order."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.typed = ""  # in text areas
        self._open: list[str] = []
        self.feed(source)
        self.close()
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in _VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] == "textarea":
            self.typed += data
        else:
            self.text += data

    def links(self, begin: str) -> list[str]:
        found = [attributes.get("href") or "" for tag, attributes in self.elements if tag == "a"]
        return [href for href in found if href.startswith(VIEWER + begin)]

    def forms(self) -> set[str]:
        return {
            attributes["action"] or ""
            for tag, attributes in self.elements
            if tag == "form" and attributes.get("method") == "post"
        }

    def hidden(self) -> dict[str, str]:
        return {
            attributes["name"] or "": attributes["value"] or ""
            for tag, attributes in self.elements
            if tag == "input" and attributes.get("type") == "hidden"
        }


class Seen(Answer):
    @property
    def page(self) -> Html:
        return Html(self.text)


class Browser:
    def __init__(self, host: str) -> None:
        self.host = host

    def get(
        self, page: str = "", headers: Mapping[str, str] | None = None, /, **fields: str
    ) -> Seen:
        path = page if page.startswith("/") else VIEWER + page
        if fields:
            path += f"?{urlencode(fields)}"
        return Seen(*ask(self.host, "GET", path, headers=headers or {}))

    def post(self, form: str, headers: Mapping[str, str] | None = None, /, **fields: str) -> Seen:
        """Send a form, by default as its page does."""
        kind = {"Content-Type": "application/x-www-form-urlencoded"}
        sent = {"Origin": f"http://{self.host}"} if headers is None else headers
        return Seen(*ask(self.host, "POST", VIEWER + form, urlencode(fields), {**kind, **sent}))


HOSTILE = "\"><script>alert(1)</script><img src=x onerror='alert(2)'>`\\\u202e\x1b\x00&lt;"
PAGES = ("kinds", "kind", "entity", "query", "transactions", "faults")


@pytest.fixture
def browser(server: userlock_emulator.Emulator) -> Browser:
    return Browser(server.host)


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


@pytest.fixture(scope="module")
def editing() -> Iterator[userlock_emulator.Emulator]:
    with userlock_emulator.start(project=PROJECT, edit=True) as running:
        yield running


@pytest.fixture
def editable(editing: userlock_emulator.Emulator) -> Iterator[tuple[Browser, Stub]]:
    editing.reset()
    with Stub(editing.host) as stub:
        yield Browser(editing.host), stub


def tasks(stub: Stub, count: int) -> None:
    stub.commit(
        *(Mutation(upsert=entity(key("Task", n + 1), n=n, even=n % 2 == 0)) for n in range(count))
    )


def ids(document: Any) -> list[int]:
    return [int(each["key"]["path"][-1]["id"]) for each in document["entities"]]


class TestLooking:
    def test_from_the_kinds_to_an_entity(self, browser: Browser, stub: Stub) -> None:
        assert browser.get().status == 200, "nothing yet"
        of = key("Parent", "p", "Task", 5, namespace="n")
        stub.put(entity(of, **EVERY_TYPE, hidden=value("not indexed", indexed=False)))
        kinds = browser.get("kinds.json").document["kinds"]
        assert [(each["namespace"], each["kind"], each["count"]) for each in kinds] == [
            ("n", "Task", 1)
        ]
        (kind,) = browser.get().page.links("kind?")
        address = browser.get(kind).page.links("entity?")[0]
        document = browser.get(address.replace("entity?", "entity.json?")).document
        assert document["properties"]["integer"] == {"integerValue": str(-(2**63))}
        assert document["properties"]["hidden"]["excludeFromIndexes"] is True
        page = browser.get(address).page
        assert document["version"] in page.text
        assert "00 ff 3c 62 3e" in page.text
        # The urlsafe key and GQL's lead to the same page, the reference to a missing entity.
        for text in (document["urlsafe"], "Parent, 'p', Task, 5"):
            found = browser.get("find", text=text, namespace="n")
            assert (found.status, found.headers["Location"]) == (303, address)
        assert 404 in {browser.get(link).status for link in page.links("entity")}

    def test_a_large_kind_is_paged(self, browser: Browser, stub: Stub) -> None:
        tasks(stub, 120)
        seen: list[int] = []
        following: list[str] = ["kind?kind=Task&project=" + PROJECT]
        while following:
            seen += ids(browser.get(following[0].replace("kind?", "kind.json?")).document)
            following = browser.get(following[0]).page.links("kind?")
        assert seen == list(range(1, 121))

    def test_what_cannot_be_shown_does_not_hide_the_others(
        self, browser: Browser, stub: Stub, server: userlock_emulator.Emulator
    ) -> None:
        """Damaged, huge, deep and manifold entities."""
        deep: dict[str, Any] = {}
        for _ in range(18):
            deep = {"d": deep}
        stub.put(entity(key("Task", 1)))
        stub.put(entity(key("Task", 2), deep=deep, **{f"p{n}": n for n in range(700)}))
        for n in (3, 4, 5, 6):
            stub.put(entity(key("Task", n), text=value("x" * 900_000, indexed=False)))
        with server._storage.writer_lock:
            server._storage._connection.execute(
                "UPDATE entities SET data = x'ffff' WHERE key IN"
                " (SELECT key FROM entities ORDER BY key LIMIT 1)"
            )
        for page in ("kind", "query"):
            fields = {"kind": "Task", "gql": "SELECT * FROM Task"}
            answer = browser.get(page, **fields, project=PROJECT)
            assert answer.status == 200
            assert "The entity cannot be read" in answer.page.text
            assert "Task, 6" in answer.page.text
            assert len(answer.text) < 40_000
        for n in range(1, 7):
            found = browser.get("find", text=f"Task, {n}")
            assert browser.get(found.headers["Location"]).page.text


class TestQueries:
    def test_gql_with_pages_and_its_own_limit(self, browser: Browser, stub: Stub) -> None:
        tasks(stub, 120)
        fields = {"gql": "SELECT * FROM Task WHERE n >= 5 ORDER BY n DESC LIMIT 70 OFFSET 10"}
        first = browser.get("query.json", **fields).document
        assert [index["properties"] for index in first["indexesUsed"]] == ["(n DESC, __name__ ASC)"]
        following = browser.get("query", **fields).page.links("query?")[0]
        second = browser.get(following.replace("query?", "query.json?")).document
        assert ids(first) + ids(second) == list(range(110, 40, -1))
        assert second["next"] is None

    @pytest.mark.parametrize(
        ("fields", "found"),
        [
            (
                {
                    "kind": "Task", "p1": "n", "o1": ">", "t1": "integer", "v1": "4",
                    "p2": "even", "o2": "=", "t2": "boolean", "v2": "true",
                    "order": "n", "direction": "descending",
                },
                [9, 7],
            ),
            ({"kind": "Step", "ancestor": "Task, 1"}, [100]),
            ({"gql": "SELECT __key__ FROM Task LIMIT 2"}, [1, 2]),
            ({"gql": "SELECT DISTINCT even FROM Task"}, [2, 1]),
        ],
    )  # fmt: skip
    def test_forms_and_gql(
        self, browser: Browser, stub: Stub, fields: dict[str, str], found: list[int]
    ) -> None:
        tasks(stub, 10)
        stub.put(entity(key("Task", 1, "Step", 100), n=1))
        assert ids(browser.get("query.json", **fields).document) == found
        assert browser.get("query", **fields).status == 200

    def test_aggregations(self, browser: Browser, stub: Stub) -> None:
        tasks(stub, 3)
        for gql in (
            "SELECT COUNT(*) AS total FROM Task",
            "AGGREGATE COUNT(*) AS total OVER (SELECT * FROM Task)",
        ):
            document = browser.get("query.json", gql=gql).document
            assert document["aggregations"] == {"total": {"integerValue": "3"}}
            assert "total" in browser.get("query", gql=gql).page.text

    @pytest.mark.parametrize(
        "fields",
        [
            {"gql": "SELCT <b>"},
            {"gql": "SELECT * FROM Task", "seen": "50", "cursor": "AAAA"},
            {"kind": "Task", "p1": "n", "t1": "integer", "v1": "many"},
            {"kind": "Task", "ancestor": "nothing"},
        ],
    )
    def test_errors_are_shown_as_text(self, browser: Browser, fields: dict[str, str]) -> None:
        answer = browser.get("query", **fields)
        assert answer.status == 400
        assert "INVALID_ARGUMENT" in answer.page.text
        assert browser.get("query.json", **fields).document["error"]["message"]

    @pytest.mark.parametrize("mode", ["enforced", "auto"])
    def test_an_index_that_clients_would_miss_is_named_and_not_added(
        self, tmp_path: Path, mode: str
    ) -> None:
        file = tmp_path / "index.yaml"
        file.write_text("indexes:\n")
        with userlock_emulator.start(indexes=mode, index_file=file) as running:
            gql = "SELECT * FROM Task WHERE a = 1 ORDER BY b"
            answer = Browser(running.host).get("query", gql=gql)
        assert answer.status == 200
        assert ("no matching index found" in answer.page.text) == (mode == "enforced")
        assert file.read_text() == "indexes:\n"


class TestMarkup:
    def test_nothing_in_the_data_becomes_markup(
        self, browser: Browser, stub: Stub, server: userlock_emulator.Emulator
    ) -> None:
        texts = {HOSTILE: HOSTILE, "list": [HOSTILE, {HOSTILE: HOSTILE}]}
        stub.put(entity(key(HOSTILE, HOSTILE, namespace="n"), **texts))
        server.faults.abort(kind=HOSTILE)
        where = {"project": PROJECT, "namespace": "n", "kind": HOSTILE}
        links = [*browser.get().page.links("kind?"), *browser.get("kind", **where).page.links("e")]
        path = VIEWER + quote(HOSTILE, safe="<>\"'`\\;&")
        pages = [browser.get(each) for each in (*links, "kinds", "faults", path)]
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
            assert "\u202e" not in page.text + answer.text
            assert "\x1b" not in answer.text
            assert "\x00" not in page.text
            for tag, attributes in page.elements:
                assert tag not in ("script", "img", "b")
                assert not any(name.startswith("on") for name in attributes)

    def test_no_page_has_scripts_or_loads_anything_from_elsewhere(self, browser: Browser) -> None:
        for page in (*PAGES, "style.css", "nothing", "kinds.json"):
            headers = browser.get(page).headers
            policy = headers["Content-Security-Policy"]
            assert "default-src 'none'" in policy
            assert "script" not in policy
            assert "frame-ancestors 'none'" in policy
            assert headers["X-Content-Type-Options"] == "nosniff"
            assert headers["Cache-Control"] == "no-store"
        for page in PAGES:
            for _, attributes in browser.get(page).page.elements:
                assert "style" not in attributes
                for name in ("href", "src", "action"):
                    assert (attributes.get(name) or VIEWER).startswith(VIEWER)
        for path in ("..", "kinds/../../reset", "%2e%2e", "style.css/x", "x.html"):
            assert browser.get(VIEWER + path).status == 404

    def test_json_beside_each_page(self, browser: Browser, stub: Stub) -> None:
        stub.put(entity(key("Task", 1), n=1))
        found = browser.get("find", text="Task, 1").headers["Location"]
        fields = {"kind": "Task", "key": found.partition("key=")[2], "project": PROJECT}
        for page in PAGES:
            one = browser.get(f"{page}.json", **fields)
            other = browser.get(page, **fields, format="json")
            assert one.headers["Content-Type"] == "application/json"
            assert one.status == other.status == browser.get(page, **fields).status == 200
            (link,) = browser.get(page, **fields).page.links(f"{page}.json")
            assert one.document.keys() == other.document.keys() == browser.get(link).document.keys()
        assert browser.get("entity.json", key="x").document == {"error": "This is not a key."}


class TestAccess:
    @pytest.mark.parametrize("headers", [{"Host": "evil.example"}, {"X-Forwarded-For": "8.8.8.8"}])
    def test_others_are_refused(self, browser: Browser, headers: dict[str, str]) -> None:
        for page in (*PAGES, "style.css", ""):
            assert browser.get(page, headers).status == 403

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
            assert away.get("", {"Host": "localhost"}).status == 403

    def test_read_only(
        self, browser: Browser, stub: Stub, server: userlock_emulator.Emulator
    ) -> None:
        stub.put(entity(key("Task", 1), n=1))
        server.faults.unavailable(rpc="AllocateIds")
        found = browser.get("find", text="Task, 1").headers["Location"].partition("key=")[2]
        for page in ("edit", "delete", "new", "reset"):
            assert browser.get(page).status == 403
        assert not any(browser.get(each).page.forms() for each in PAGES)
        for form in ("save", "delete", "roll-back", "remove-fault", "reset"):
            answer = browser.post(form, key=found)
            assert answer.status == 403
            assert "--edit" in answer.text
        assert stub.get(key("Task", 1)) is not None
        assert len(server.faults.planted) == 1

    @pytest.mark.parametrize(
        "headers", [{}, {"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "none"}]
    )
    def test_forms_of_other_pages_are_refused(
        self, editable: tuple[Browser, Stub], headers: dict[str, str]
    ) -> None:
        browser, stub = editable
        stub.put(entity(key("Task", 1), n=1))
        assert browser.post("reset", headers).status == 403
        assert stub.get(key("Task", 1)) is not None
        assert browser.post("kinds").status == 404
        here = {"Origin": f"http://{browser.host}"}
        assert ask(browser.host, "PUT", "/viewer/kinds", None, here).status == 405


class TestEdits:
    def test_create_edit_and_delete(self, editable: tuple[Browser, Stub]) -> None:
        browser, stub = editable
        of = key("Task", "a")
        text = '{"key": {"path": [{"kind": "Task", "name": "a"}]}, "properties": {}}'
        answer = browser.post("save", entity=text, project=PROJECT)
        assert answer.status == 303
        page = browser.get(answer.headers["Location"]).page
        assert stub.get(of) == entity(of)
        stub.put(entity(of, **EVERY_TYPE, odd="a\u202eb\r\n\t\x00<é>"))
        stored = stub.get(of)
        form = browser.get(page.links("edit")[0]).page
        assert browser.post("save", entity=form.typed, **form.hidden()).status == 303
        assert stub.get(of) == stored, "every type survives an edit"
        text = form.typed.replace("a text", "another")
        assert browser.post("save", entity=text, **form.hidden()).status == 303
        changed = stub.get(of)
        assert changed is not None
        assert changed.properties["text"].string_value == "another"
        late = browser.post("save", entity=form.typed, **form.hidden())
        assert late.status == 409, "it has changed since"
        assert browser.get("reset").page.forms() == {"/viewer/reset"}
        question = browser.get(page.links("delete")[0]).page
        assert question.forms() == {"/viewer/delete"}
        assert stub.get(of) is not None, "it asks first"
        assert browser.post("delete", **question.hidden()).status == 303
        assert stub.get(of) is None
        assert browser.post("reset").status == 303

    @pytest.mark.parametrize(
        "text",
        [
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
        stub.put(entity(key("Task", 1), n=1))
        found = browser.get("find", text="Task, 1").headers["Location"]
        hidden = browser.get(found.replace("entity", "edit")).page.hidden()
        answer = browser.post("save", entity=text, **({} if text == "{}" else hidden))
        assert answer.status == 400
        assert text in answer.page.typed
        assert stub.get(key("Task", 1)) == entity(key("Task", 1), n=1)

    def test_faults_are_shown_and_removed(
        self, editable: tuple[Browser, Stub], editing: userlock_emulator.Emulator
    ) -> None:
        browser, _ = editable
        editing.faults.abort(3, kind="Task")
        editing.faults.delay(0.5, count=None, rpc="Lookup")
        assert "Commit of Task" in browser.get("faults").page.text
        listed = browser.get("faults.json").document["faults"]
        assert [each["fault"] for each in listed] == ["abort", "delay"]
        browser.post("remove-fault", id=str(listed[0]["id"]))
        assert [each.rule.name for each in editing.faults.planted] == ["delay"]
        browser.post("remove-fault")
        assert not editing.faults.planted


class TestTransactions:
    OF = key("Task", "<stuck>")

    @pytest.fixture
    def stuck(self) -> Iterator[tuple[userlock_emulator.Emulator, Browser, Stub]]:
        with (
            userlock_emulator.start(
                project=PROJECT, concurrency_mode="pessimistic", edit=True
            ) as emulator,
            Stub(emulator.host) as stub,
        ):
            stub.put(entity(self.OF, n=1))
            stub.get(self.OF, transaction=stub.begin())
            yield emulator, Browser(emulator.host), stub

    def test_one_is_seen_with_its_waiters_and_rolled_back(self, stuck: Any) -> None:
        emulator, browser, stub = stuck
        writer = Started(lambda: stub.put(entity(self.OF, n=2)))
        wait_until(lambda: emulator.waiting)
        document = browser.get("transactions.json").document
        (transaction,), (waiting,) = document["transactions"], document["waiting"]
        assert document["mode"] == "pessimistic"
        path = [{"kind": "Task", "name": "<stuck>"}]
        assert transaction["locks"]["shared"][0]["path"] == path
        assert transaction["blocks"] == ["a commit outside transactions"]
        assert re.search(r"^grpc-python.* at port \d+$", transaction["client"])
        assert (waiting["behind"], waiting["exclusive"]) == ([transaction["name"]], True)
        page = browser.get("transactions").page
        for text in (transaction["name"], "Task, '<stuck>'", "grpc-python"):
            assert text in page.text
        for name in ("", "zz", "00" * 20):
            wrong = browser.post("roll-back", transaction=name, project=PROJECT, database="")
            assert wrong.status == 400
        assert not writer.done
        assert browser.post("roll-back", **page.hidden()).status == 303
        writer.result()
        assert browser.get("transactions.json").document["transactions"] == []
        # The page comes again if that is wished.
        (again,) = page.links("transactions?")
        refresh = ("meta", {"http-equiv": "refresh", "content": "5"})
        assert refresh in browser.get(again).page.elements
        assert refresh not in page.elements

    def test_where_nobody_waits_it_shows_what_was_read(self, browser: Browser, stub: Stub) -> None:
        stub.put(entity(self.OF))
        stub.get(self.OF, transaction=stub.begin())
        stub.put(entity(self.OF, n=2))
        document = browser.get("transactions.json").document
        (transaction,) = document["transactions"]
        assert (document["mode"], document["waiting"]) == ("optimistic", [])
        path = [{"kind": "Task", "name": "<stuck>"}]
        assert transaction["read"]["entities"][0]["path"] == path
        assert "Task, '<stuck>'" in browser.get("transactions").page.text
