"""What people type, checked before it becomes a key or a number. Pure functions."""

from __future__ import annotations

import re
import unicodedata

from sample_app.errors import BadInput

MAX_ID_LENGTH = 40
MAX_NAME_LENGTH = 80

_ID = re.compile(r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?")


def learner_id(value: object) -> str:
    """An id as it stands in a URL: small letters, digits and inner hyphens."""
    if not isinstance(value, str) or not _ID.fullmatch(value) or len(value) > MAX_ID_LENGTH:
        raise BadInput(
            "id",
            f"use 1 to {MAX_ID_LENGTH} small letters, digits and hyphens "
            "(a hyphen neither first nor last)",
        )
    return value


def name(value: object) -> str:
    """A person's name, trimmed; any script, no control characters."""
    text = " ".join(value.split()) if isinstance(value, str) else ""
    if not text:
        raise BadInput("name", "a name is needed")
    if len(text) > MAX_NAME_LENGTH:
        raise BadInput("name", f"at most {MAX_NAME_LENGTH} characters")
    # Cc: control, Cs: half of a surrogate pair. Neither belongs in a name,
    # and the second cannot even be stored.
    if any(unicodedata.category(character) in {"Cc", "Cs"} for character in text):
        raise BadInput("name", "no control characters")
    return text


def id_from_name(value: str) -> str:
    """An id made from a name: "Zoë Ångström" becomes "zoe-angstrom"."""
    plain = unicodedata.normalize("NFKD", value).encode("ascii", "ignore").decode().lower()
    slug = re.sub(r"[^a-z0-9]+", "-", plain).strip("-")[:MAX_ID_LENGTH].strip("-")
    if not slug:
        raise BadInput("id", "this name has no plain letters to make an id of; choose an id")
    return slug


def seconds(value: object, *, longest: int) -> int:
    """A whole number of seconds from 1 to `longest`; text is read as a number."""
    if isinstance(value, str) and re.fullmatch(r"\s*[0-9]{1,9}\s*", value):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= longest:
        raise BadInput("seconds", f"a whole number from 1 to {longest}, the video's length")
    return value
