"""Environment variables in the syntax of a shell."""

import shlex
from collections.abc import Iterator, Mapping

TASKS_VARIABLE = "CLOUD_TASKS_EMULATOR_HOST"
SHELLS = {"bash": "export {}={}", "fish": "set -gx {} {}"}


def exports(variables: Mapping[str, str], shell: str) -> Iterator[str]:
    """Yield a line for each variable, in the syntax of one of `SHELLS`."""
    for name, value in variables.items():
        yield SHELLS[shell].format(name, shlex.quote(value))


def datastore_variables(host: str, project: str) -> dict[str, str]:
    """Return the variables that direct the client libraries to an emulator."""
    return {
        "DATASTORE_EMULATOR_HOST": host,
        "DATASTORE_DATASET": project,
        "DATASTORE_PROJECT_ID": project,
        "GOOGLE_CLOUD_PROJECT": project,
    }


def tasks_variables(host: str) -> dict[str, str]:
    """Return the variables that direct applications to a Cloud Tasks emulator."""
    return {TASKS_VARIABLE: host}
