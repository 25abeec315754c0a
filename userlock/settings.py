"""How strictly the model layer checks, process-wide and per scope."""

from __future__ import annotations

import dataclasses
import enum


class Enforcement(enum.Enum):
    """What happens when a write slips past its lock."""

    #: The put raises before anything is sent. The default.
    RAISE = "raise"
    #: The put goes ahead (still fenced) and a warning is logged, once for each put site: for a
    #: roll-out in production.
    LOG = "log"
    #: Nothing is checked. Fencing is a setting of its own and stays as it is.
    OFF = "off"

    @classmethod
    def of(cls, value: Enforcement | str) -> Enforcement:
        """The mode named by a word; `ValueError` says which words there are."""
        try:
            return cls(value)
        except ValueError:
            raise ValueError(
                f"enforcement must be 'raise', 'log' or 'off', not {value!r}"
            ) from None


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """How the model layer behaves.

    Attributes:
        enforcement: what happens when a write slips past its lock.
        fencing: whether puts carry the version that was read, so that Datastore refuses
            a stale one. Turn it off only to show what it is for.
        capture_places: whether reads remember where in the code they happened. Costs a
            few microseconds a read; without it a violation names only the put.
    """

    enforcement: Enforcement = Enforcement.RAISE
    fencing: bool = True
    capture_places: bool = True


def make_settings(
    base: Settings,
    *,
    enforcement: Enforcement | str | None = None,
    fencing: bool | None = None,
    capture_places: bool | None = None,
) -> Settings:
    """`base` with what is given changed; words are turned into modes, wrong ones refused."""
    return dataclasses.replace(
        base,
        enforcement=base.enforcement if enforcement is None else Enforcement.of(enforcement),
        fencing=base.fencing if fencing is None else fencing,
        capture_places=base.capture_places if capture_places is None else capture_places,
    )
