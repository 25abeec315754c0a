"""The HTTP requests that list, add and remove faults; JSON in and out.

    GET    /faults       the active faults
    POST   /faults       add one: {"fault": NAME, ARGUMENT: …}
    DELETE /faults       remove all
    DELETE /faults/ID    remove one

The other members of a POST are the arguments of the method with the fault's name.
"""

import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Protocol

from userlock_emulator.port.planting import Fault
from userlock_emulator.port.reply import RefusedError

PATH = "/faults"


class Planter(Protocol):
    """A server's faults, with a method for each kind of fault."""

    @property
    def planted(self) -> tuple[Fault[Any], ...]:
        """Return the active faults."""

    def clear(self) -> None:
        """Remove all faults."""


class FaultRequests:
    """Handler of these requests.

    Args:
        faults: the faults to list, add and remove.
        names: the methods of `faults` that add one.
        types: the types that an argument may have, by its name.
    """

    def __init__(
        self, faults: Planter, names: tuple[str, ...], types: Mapping[str, tuple[type, ...]]
    ) -> None:
        self._faults = faults
        self._names = names
        self._types = types

    def answer(self, method: str, path: str, body: bytes) -> tuple[HTTPStatus, Any]:
        """Return status and document of the reply to a request with any path.

        Raises:
            RefusedError: there is nothing under this path, or the request is wrong.
        """
        if path == PATH:
            if method == "POST":
                return HTTPStatus.CREATED, self._plant(body).described()
            if method == "DELETE":
                self._faults.clear()
            elif method != "GET":
                raise RefusedError(HTTPStatus.METHOD_NOT_ALLOWED, f"GET, POST or DELETE {PATH}")
            return HTTPStatus.OK, {"faults": [each.described() for each in self._faults.planted]}
        number = path.removeprefix(f"{PATH}/")
        fault = next((each for each in self._faults.planted if str(each.id) == number), None)
        if fault is None:
            raise RefusedError(HTTPStatus.NOT_FOUND, f"there is no {path or '/'}")
        if method == "DELETE":
            fault.remove()
        elif method != "GET":
            raise RefusedError(HTTPStatus.METHOD_NOT_ALLOWED, f"GET or DELETE {path}")
        return HTTPStatus.OK, fault.described()

    def _plant(self, body: bytes) -> Fault[Any]:
        try:
            arguments = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise RefusedError(HTTPStatus.BAD_REQUEST, f"the body is not JSON: {error}") from None
        if not isinstance(arguments, dict):
            raise RefusedError(HTTPStatus.BAD_REQUEST, "the body must be a JSON object")
        name = arguments.pop("fault", None)
        if name not in self._names:
            known = ", ".join(self._names)
            raise RefusedError(
                HTTPStatus.BAD_REQUEST, f"there is no fault {name!r}; there are: {known}"
            )
        for argument, value in arguments.items():
            if type(value) not in self._types.get(argument, (type(value),)):
                raise RefusedError(HTTPStatus.BAD_REQUEST, f"{argument} cannot be {value!r}")
        try:
            fault: Fault[Any] = getattr(self._faults, name)(**arguments)
        except (TypeError, ValueError) as error:
            wrong = str(error)
            for prefix in ("Rule.__init__() ", f"{type(self._faults).__name__}.{name}() "):
                wrong = wrong.removeprefix(prefix)
            raise RefusedError(HTTPStatus.BAD_REQUEST, f"{name}: {wrong}") from None
        return fault
