"""User input, checked before it becomes a key or a number. Pure functions."""

from __future__ import annotations

import hashlib
import re
import unicodedata

from sample_app.catalogue import Exercise
from sample_app.errors import BadInput, Unknown
from sample_app.numbers import whole_number

MAX_ID_LENGTH = 40
MAX_NAME_LENGTH = 80
MAX_WORD_LENGTH = 140
MAX_FILE_NAME_LENGTH = 100
MAX_BONUS = 50
MAX_PART = 999

_ID = re.compile(r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?")


def learner_id(value: object) -> str:
    """Check an id as in a URL: small letters, digits and inner hyphens."""
    if not isinstance(value, str) or not _ID.fullmatch(value) or len(value) > MAX_ID_LENGTH:
        raise BadInput(
            "id",
            f"use 1 to {MAX_ID_LENGTH} small letters, digits and hyphens "
            "(a hyphen neither first nor last)",
        )
    return value


def name(value: object) -> str:
    """Check a person's name, trimmed; any script, no control characters."""
    return line("name", value, longest=MAX_NAME_LENGTH)


def line(field: str, value: object, *, longest: int, empty: bool = False) -> str:
    """Check one line of text, trimmed; any script, no control characters."""
    text = " ".join(value.split()) if isinstance(value, str) else ""
    if not text and not empty:
        raise BadInput(field, f"a {field} is needed")
    if len(text) > longest:
        raise BadInput(field, f"at most {longest} characters")
    # Cc: control, Cs: half of a surrogate pair. Neither belongs in a line of text, and the second
    # cannot be stored.
    if any(unicodedata.category(character) in {"Cc", "Cs"} for character in text):
        raise BadInput(field, "no control characters")
    return text


def id_from_name(value: str) -> str:
    """Derive an id from a name: "Zoë Ångström" becomes "zoe-angstrom". One without letters of the
    Latin alphabet gets some hexadecimal digits."""
    plain = unicodedata.normalize("NFKD", value).encode("ascii", "ignore").decode().lower()
    slug = re.sub(r"[^a-z0-9]+", "-", plain).strip("-")[:MAX_ID_LENGTH].strip("-")
    return slug or hashlib.sha256(value.encode()).hexdigest()[:8]


def number(field: str, value: object, *, least: int, most: int) -> int:
    """Check a whole number from `least` to `most`; text is parsed."""
    found = whole_number(value, least=least, most=most)
    if found is None:
        raise BadInput(field, f"a whole number from {least} to {most}")
    return found


def entity_id(what: str, value: str) -> int:
    """Check the id of a project or screen in an address. An invalid one is that of none."""
    found = whole_number(value, least=1, most=2**63 - 1)
    if found is None:
        raise Unknown(what, value)
    return found


def deletion_id(value: str) -> str:
    """Check the id of a deletion in an address."""
    if not re.fullmatch(r"[0-9a-f]{28}", value):
        raise Unknown("deletion", value)
    return value


def file_name(value: object) -> str:
    """Check the name of an uploaded file, without the folder that some browsers send."""
    name = value.replace("\\", "/").rpartition("/")[2] if isinstance(value, str) else ""
    return line("file", name, longest=MAX_FILE_NAME_LENGTH)


def answers(value: object, exercise: Exercise) -> list[int | None]:
    """Check one answer to each question: the number of a choice, from 0, or None."""
    questions = exercise.questions
    if not isinstance(value, list) or len(value) != len(questions):
        raise BadInput("answers", f"a list of {len(questions)}, one for each question")
    return [
        None if each is None else number("answers", each, least=0, most=len(question.choices) - 1)
        for each, question in zip(value, questions, strict=True)
    ]
