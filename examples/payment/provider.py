"""A payment provider for docs/payment.md: a folder with a file for each key, and what goes wrong.

The file `mood` says how it answers, the file `die` where the process is killed.
"""

from __future__ import annotations

import os
import pathlib
import signal


class CardDeclined(Exception):
    """The provider's final answer."""


def charge_card(key: str) -> str:
    """Return the charge of this key, which is made once."""
    with pathlib.Path("asked.txt").open("a") as asked:
        print(key, file=asked)
    mood = _read("mood")
    if mood == "down":
        raise ConnectionError("no answer")
    if mood == "declines":
        raise CardDeclined("the card is declined")
    charges = pathlib.Path("charges")
    charges.mkdir(exist_ok=True)
    charge = charges / key
    is_new = not charge.exists()
    if is_new:
        charge.write_text(f"charge-{len(list(charges.iterdir())) + 1}")
    die_at("charged")
    if is_new and mood == "loses its reply":
        raise TimeoutError("the reply is lost")
    return charge.read_text()


def die_at(point: str) -> None:
    """Kill this process if the file `die` names this point."""
    if _read("die") == point:
        pathlib.Path("die").unlink()
        os.kill(os.getpid(), signal.SIGKILL)


def _read(name: str) -> str:
    file = pathlib.Path(name)
    return file.read_text().strip() if file.exists() else ""
