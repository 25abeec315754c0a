"""Texts of the viewer: markup that escapes, keys as GQL and back."""

import pytest

from tests.unit.emulator.builders import PROJECT, key
from userlock_emulator.datastore.catalog import Partition
from userlock_emulator.datastore.encoding import encode_key
from userlock_emulator.datastore.errors import DatastoreError
from userlock_emulator.datastore.key_text import gql_key, named
from userlock_emulator.datastore.viewer import places
from userlock_emulator.datastore.viewer.markup import exact, join, tag

PARTITION = Partition(PROJECT, "", "")


def test_texts_and_attributes_are_escaped_and_elements_are_not() -> None:
    inner = tag("b", "<i>", 3, None, ["&", tag("br")])
    assert inner == "<b>&lt;i&gt;3&amp;<br></b>"
    assert tag("p", inner, title="\"><'") == f'<p title="&quot;&gt;&lt;&#x27;">{inner}</p>'
    assert join("<", inner) == f"&lt;{inner}"


def test_what_nobody_would_see_is_shown() -> None:
    assert tag("p", "a\u202eb\x00\u200b\n\t") == "<p>a\\u202eb\\u0000\\u200b\n\t</p>"
    assert tag("p", title="\x1b\u202e") == '<p title="\\u001b\\u202e"></p>'


def test_what_comes_back_with_a_form_is_the_same_text_without_being_seen_in_the_source() -> None:
    assert exact("\x1b\u202e<") == "\n&#27;&#8238;&lt;"
    assert tag("input", value="\u202e\r\n") == '<input value="&#8238;&#13;\n">'
    assert exact("\x9b") == "\n\x9b", "a browser makes another character of its number"


@pytest.mark.parametrize(
    "path",
    [
        ("Task", 5),
        ("Parent", "a", "Task", -1),
        ("odd kind`\\\n", 'it\'s \\ "odd"\0\t'),
        ("Ünï", "ñ\u202e"),
    ],
)
def test_a_key_as_gql_leads_back_to_it(path: tuple[str | int, ...]) -> None:
    for namespace in ("", "n-1"):
        made = key(*path, namespace=namespace)
        made.partition_id.database_id = ""
        assert places.find(gql_key(made), PARTITION) == made
        assert places.key_of(places.token(made)) == made
        assert places.from_rest(places.rest(made)) == made
        legacy = places.legacy_urlsafe(made)
        assert legacy is not None
        assert places.find(f" {legacy} ", PARTITION) == made


@pytest.mark.parametrize(
    "text", ["", "Task", "x" * 50, "KEY(", "Task, 1) OR __key__ = KEY(Task, 2"]
)
def test_other_texts_are_no_keys(text: str) -> None:
    with pytest.raises(DatastoreError, match=r"neither a key|more than a key"):
        places.find(text, PARTITION)
    with pytest.raises(DatastoreError):
        places.key_of(text)


def test_keys_in_messages() -> None:
    assert named((PARTITION, encode_key(key("Task", "a")))) == "KEY(Task, 'a')"
    assert named((PARTITION, b"broken")) == "the key b'broken'"
