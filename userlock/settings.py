"""Define how strict the model layer is, for the process and for each scope."""

from __future__ import annotations

import dataclasses
import enum

from userlock.arguments import check_bool


class Enforcement(enum.Enum):
    """The reaction to a violation."""

    #: The put raises before anything is sent. The default.
    RAISE = "raise"
    #: The put goes ahead, still fenced. A warning is logged once for each put site: for a
    #: roll-out in production.
    LOG = "log"
    #: Nothing is checked. Fencing is a separate setting and stays as it is.
    OFF = "off"


class Reaction(enum.Enum):
    """The reaction to a likely mistake."""

    #: The mistake is not looked for.
    OFF = "off"
    #: The operation raises an error.
    RAISE = "raise"


class ShowIds(enum.Enum):
    """The form of lock ids in all that the process shows of them (`userlock.ids`)."""

    #: As they are. The default.
    PLAIN = "plain"
    #: `***`, for all of them.
    MASKED = "masked"
    #: Short hashes by a secret key, by which an operator can find the log lines of one lock.
    HASHED = "hashed"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """The settings of the model layer. The names of modes are accepted in their place.

    Attributes:
        enforcement: the reaction to a write that slips past its lock.
        fencing: whether puts carry the version that was read, so that Datastore refuses
            a stale one. Turn it off only to show what it is for.
        capture_places: whether reads remember their call site. Costs a few microseconds per
            read; without it a violation names only the put.
        blind_overwrites: the reaction to a new object that is put under the key of an existing
            entity which was not read. `off` lets it overwrite the entity.

    Raises:
        ValueError: an unknown mode.
        TypeError: `fencing` or `capture_places` is not a bool.
    """

    enforcement: Enforcement | str = Enforcement.RAISE
    fencing: bool = True
    capture_places: bool = True
    blind_overwrites: Reaction | str = Reaction.RAISE

    def __post_init__(self) -> None:
        for name, modes in (("enforcement", Enforcement), ("blind_overwrites", Reaction)):
            value = getattr(self, name)
            try:
                object.__setattr__(self, name, modes(value))
            except ValueError:
                known = ", ".join(repr(mode.value) for mode in modes)
                raise ValueError(f"{name} must be one of {known}, not {value!r}") from None
        for name in ("fencing", "capture_places"):
            check_bool(name, getattr(self, name))

    def changed(self, **changes: Enforcement | Reaction | str | bool | None) -> Settings:
        """Return a copy with some settings changed. None leaves a setting as it is."""
        given = {name: value for name, value in changes.items() if value is not None}
        if not given:
            return self
        return dataclasses.replace(self, **given)  # type: ignore[arg-type]  # checked above
