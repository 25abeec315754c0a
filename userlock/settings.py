"""The strictness of the model layer, process-wide and per scope."""

from __future__ import annotations

import dataclasses
import enum


class Enforcement(enum.Enum):
    """The reaction to a violation."""

    #: The put raises before anything is sent. The default.
    RAISE = "raise"
    #: The put goes ahead (still fenced) and a warning is logged, once for each put site: for a
    #: roll-out in production.
    LOG = "log"
    #: Nothing is checked. Fencing is a setting of its own and stays as it is.
    OFF = "off"

    @classmethod
    def of(cls, value: Enforcement | str) -> Enforcement:
        """Return the mode named by a word; `ValueError` says which words there are."""
        try:
            return cls(value)
        except ValueError:
            raise ValueError(
                f"enforcement must be 'raise', 'log' or 'off', not {value!r}"
            ) from None


class Reaction(enum.Enum):
    """The reaction to a likely mistake."""

    #: Nothing, and nothing is looked for.
    OFF = "off"
    #: It goes ahead, and is told of: an event, and a line in the log.
    WARN = "warn"
    #: It is refused, by an error.
    RAISE = "raise"

    @classmethod
    def of(cls, name: str, value: Reaction | str) -> Reaction:
        """The reaction named by a word; `ValueError` says which words the setting `name` takes."""
        try:
            return cls(value)
        except ValueError:
            raise ValueError(f"{name} must be 'off', 'warn' or 'raise', not {value!r}") from None


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """The settings of the model layer.

    Attributes:
        enforcement: what happens when a write slips past its lock.
        fencing: whether puts carry the version that was read, so that Datastore refuses
            a stale one. Turn it off only to show what it is for.
        capture_places: whether reads remember where in the code they happened. Costs a
            few microseconds a read; without it a violation names only the put.
        blind_overwrites: about a new object that is put under the key of an entity that exists,
            without a look at it. `off` and `warn` let it overwrite the entity.
    """

    enforcement: Enforcement = Enforcement.RAISE
    fencing: bool = True
    capture_places: bool = True
    blind_overwrites: Reaction = Reaction.RAISE


def make_settings(
    base: Settings,
    *,
    enforcement: Enforcement | str | None = None,
    fencing: bool | None = None,
    capture_places: bool | None = None,
    blind_overwrites: Reaction | str | None = None,
) -> Settings:
    """`base` with what is given changed; words are turned into modes, wrong ones refused."""
    return dataclasses.replace(
        base,
        enforcement=base.enforcement if enforcement is None else Enforcement.of(enforcement),
        fencing=base.fencing if fencing is None else fencing,
        capture_places=base.capture_places if capture_places is None else capture_places,
        blind_overwrites=base.blind_overwrites
        if blind_overwrites is None
        else Reaction.of("blind_overwrites", blind_overwrites),
    )
