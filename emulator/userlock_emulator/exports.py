"""Environment variables: in the syntax of a shell, and in the env.yaml of a data folder."""

import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path

from userlock_emulator.private_files import create_file, make_folder

#: Both spellings are in use.
TASKS_VARIABLES = ("CLOUD_TASKS_EMULATOR_HOST", "CLOUDTASKS_EMULATOR_HOST")
SHELLS = {"bash": "export {}={}", "fish": "set -gx {} {}"}
UNSETTING = {"bash": "unset {}", "fish": "set -e {}"}
#: The file in a data folder from which `gcloud beta emulators datastore env-init` prints, too.
ENV_FILE = "env.yaml"


class EnvFileError(Exception):
    """The env.yaml of a folder is missing or cannot be used. The text is one line."""


def exports(variables: Mapping[str, str], shell: str) -> Iterator[str]:
    """Yield a line for each variable, in the syntax of one of `SHELLS`."""
    for name, value in variables.items():
        yield SHELLS[shell].format(name, shlex.quote(value))


def datastore_variables(host: str, project: str) -> dict[str, str]:
    """Return the variables that direct the client libraries to an emulator.

    They are those of `gcloud beta emulators datastore env-init`, and the project's usual one.
    """
    return {
        "DATASTORE_EMULATOR_HOST": host,
        "DATASTORE_EMULATOR_HOST_PATH": f"{host}/datastore",
        "DATASTORE_HOST": f"http://{host}",
        "DATASTORE_DATASET": project,
        "DATASTORE_PROJECT_ID": project,
        "GOOGLE_CLOUD_PROJECT": project,
    }


def tasks_variables(host: str) -> dict[str, str]:
    """Return the variables that direct applications to a Cloud Tasks emulator."""
    return dict.fromkeys(TASKS_VARIABLES, host)


def write_env_file(folder: Path, variables: Mapping[str, str]) -> None:
    """Write the variables into the folder's env.yaml, as Google's emulator does.

    Raises:
        EnvFileError: the file cannot be written.
    """
    import yaml

    path = folder / ENV_FILE
    try:
        make_folder(folder)
        create_file(path)
        path.write_text(yaml.safe_dump(dict(variables), explicit_start=True))
    except OSError as error:
        raise EnvFileError(f"cannot write {path}: {error.strerror}") from None


def read_env_file(folder: Path) -> dict[str, str]:
    """Return the variables in the folder's env.yaml, ours or Google's.

    Raises:
        EnvFileError: there is none, or it holds something else.
    """
    import yaml

    path = folder / ENV_FILE
    try:
        found = yaml.safe_load(path.read_text())
    except FileNotFoundError:
        raise EnvFileError(f"no {path}: start an emulator with --data-dir {folder}") from None
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise EnvFileError(f"cannot read {path}: {' '.join(str(error).split())}") from None
    if not isinstance(found, dict) or not all(
        isinstance(name, str) and name.isidentifier() and isinstance(value, str)
        for name, value in found.items()
    ):
        raise EnvFileError(f"{path} holds something else than variables")
    return found
