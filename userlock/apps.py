"""Find an object of an app, for processes that are not the app.

By its own name, that of a module and an attribute, as gunicorn takes it: `main:outbox`. Or by that
of the app, `main:app`: then it is the only one of its kind that the app makes when it is imported.
"""

from __future__ import annotations

import importlib
import re
import sys
import weakref
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import TypeVar

from userlock.callsite import raised_at
from userlock.errors import ConfigurationError
from userlock.words import legible, meant, text_of

_T = TypeVar("_T")
_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")
_SHOWN = 200

#: The environment variable with the name of the app.
VARIABLE = "USERLOCK_APP"
_made: weakref.WeakSet[object] = weakref.WeakSet()


def variable_of(noun: str) -> str:
    """Return the environment variable that names one object of an app: USERLOCK_OUTBOX."""
    return f"USERLOCK_{noun.upper()}"


def note_made(found: object) -> None:
    """Note an object of the app's that other processes may look for."""
    _made.add(found)


def find_in_app(
    name: str,
    kind: type[_T],
    noun: str,
    same: Callable[[_T], Hashable] = id,
) -> _T:
    """Import an app, and return its only object of a kind.

    Args:
        name: the app's, `main:app`, or its module's.
        kind: the class.
        noun: the object, in a word: "outbox".
        same: returns the same for objects of which any will do.

    Raises:
        ConfigurationError: there are none, or several; or the module cannot be imported.
    """
    module_name = name.partition(":")[0]
    if not _NAME.fullmatch(f"{module_name}:app"):
        raise ConfigurationError(
            f"{legible(name, _SHOWN)!r} names no app. To fix it: {VARIABLE}=main:app"
        )
    _import(module_name)
    found = {same(each): each for each in list(_made) if isinstance(each, kind)}
    if len(found) != 1:
        number = f"{len(found)} objects" if found else "no object"
        raise ConfigurationError(
            f"the app {legible(name, _SHOWN)} has {number} that could be its {noun}. To fix it: "
            f"name it, as in {variable_of(noun)}={module_name}:{noun}"
        )
    return next(iter(found.values()))


def find_object(name: str, kind: type[_T], noun: str, attribute: str = "") -> _T:
    """Import an object of an app. Modules of the current directory are found.

    Args:
        name: `module:attribute`; both may have dots.
        kind: its class.
        noun: the object, in words: "outbox".
        attribute: its usual name, for the text of errors; by default the noun.

    Raises:
        ConfigurationError: there is none of that name, or its module cannot be imported. The error
            of the import is its `__cause__`.
    """
    shown, attribute = legible(name, _SHOWN), attribute or noun
    if not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"{shown!r} names no {noun}. To fix it: name the module and its attribute, as in "
            f"main:{attribute}"
        )
    module_name, _, path = name.partition(":")
    found: object = _import(module_name)
    for number, part in enumerate(path.split(".")):
        if not hasattr(found, part):
            place = ".".join([module_name, *path.split(".")[:number]])
            near = meant(part, [each for each in dir(found) if not each.startswith("_")])
            raise ConfigurationError(
                f"{place} has no {part!r}{f'; {near}' if near else '.'} To fix it: name the "
                f"attribute of the {noun}, as in {module_name}:{attribute}"
            )
        found = getattr(found, part)
    if not isinstance(found, kind):
        module = kind.__module__.rpartition(".")[0]  # the package, which has the public name
        raise ConfigurationError(
            f"{shown} is no {module}.{kind.__name__}, but of the type {type(found).__name__}. "
            f"To fix it: name the app's {noun}"
        )
    return found


def _import(name: str) -> object:
    """Import a module of the app, be it in the current directory."""
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            without_py = ", and name the module without .py" if name.endswith(".py") else ""
            raise ConfigurationError(
                f"there is no module {error.name}, in {legible(here, _SHOWN)} or on Python's path. "
                f"To fix it: change to the app's directory{without_py}"
            ) from error
        raise _failed(name, error) from error
    except SystemExit as error:
        raise _failed(name, error) from error
    except Exception as error:
        raise _failed(name, error) from error


def _failed(name: str, error: BaseException) -> ConfigurationError:
    text = legible(text_of(error), _SHOWN)
    site = None if isinstance(error, SyntaxError) else raised_at(error)  # its text has the place
    if site is not None:
        text += f" ({site.file}:{site.line})"
    return ConfigurationError(f"the module {name} cannot be imported: {text}")
