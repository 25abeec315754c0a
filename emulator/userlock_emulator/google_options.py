"""The options of Google's emulators on `start`, in the spellings of gcloud and of their programs.

An option is carried out, accepted because this emulator always behaves so, or refused with the
reason. None is ignored. From `gcloud beta emulators datastore start`, `gcloud emulators firestore
start`, and `cloud_datastore_emulator help start` of the Cloud SDK 528.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

_ENTITY_GROUPS = "optimistic-with-entity-groups"
_MAX_PORT = 65535
#: Where Google's Datastore emulator keeps its data, below the data folder.
GOOGLES_DATA = Path("WEB-INF", "appengine-generated", "local_db.bin")

#: Switches that Google's programs write as --NAME=true and --NAME=false.
_SWITCHES = (
    "--store-on-disk",
    "--store-index-configuration-on-disk",
    "--enable-entity-groups",
    "--regenerate-indexes",
)
_IMPORT = "start the emulator, then POST input_url to /v1/projects/PROJECT:import"
_EXPORT = "before the end, POST output_url_prefix to /v1/projects/PROJECT:export"
_REFUSED = {
    "--storage-file": "the data file has a fixed name; give its folder by --data-dir",
    "--allow-reserved-kinds": "kinds like __this__ are refused, as by the service",
    "--regenerate-indexes": "unused indexes stay in the index file; delete them by hand",
    "--store-index-configuration-on-disk": "use --indexes auto with --index-file FILE",
    "--import-data": _IMPORT,
    "--seed-from-export": _IMPORT,
    "--export-on-exit": _EXPORT,
    "--export-name": _EXPORT,
    "--rules": "security rules belong to Firestore in Native mode",
}


class OptionError(Exception):
    """Options contradict each other. The text is one line."""


def spelled(arguments: Sequence[str]) -> Iterator[str]:
    """Yield arguments with hyphens for Google's underscores, and `--no-x` for `--x=false`."""
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if name.startswith("--"):
            name = name.replace("_", "-")
            if name in _SWITCHES and value.lower() in ("true", "false"):
                yield name if value.lower() == "true" else f"--no-{name.removeprefix('--')}"
                continue
        yield f"{name}{equals}{value}"


def host_port(text: str) -> tuple[str, int | None]:
    """Return the host ("" if missing) and the port (None if missing) of `[HOST][:PORT]`.

    IPv6 addresses are in brackets. Digits alone are a port.
    """
    host, port = text, ""
    if text.startswith("["):
        host, closed, rest = text[1:].partition("]")
        port = rest.removeprefix(":")
        if not closed or not host or rest == port != "":
            raise argparse.ArgumentTypeError(f"not [ADDRESS]:PORT: {text[:100]!r}")
    elif ":" in text:
        host, _, port = text.partition(":")
    elif text.isdecimal():
        host, port = "", text
    if not (port or host) or (port and not _is_port(port)):
        raise argparse.ArgumentTypeError(f"not HOST:PORT: {text[:100]!r}")
    return host, int(port) if port else None


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 5 and int(text) <= _MAX_PORT


class _HostPort(argparse.Action):
    """Set host and port at once; of several options the last one counts."""

    def __call__(
        self, _parser: Any, namespace: argparse.Namespace, values: Any, _option: Any = None
    ) -> None:
        host, port = values
        if host:
            namespace.host = host
        if port is not None:
            namespace.port = port


class _Refused(argparse.Action):
    """Refuse an option with the reason in `const`."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        _namespace: Any,
        _values: Any,
        option: str | None = None,
    ) -> NoReturn:
        parser.error(f"{option}: {self.const}")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add Google's options; `settle` carries them out."""
    group = parser.add_argument_group("options of Google's emulators")
    group.add_argument(
        "--host-port",
        action=_HostPort,
        type=host_port,
        metavar="[HOST][:PORT]",
        default=argparse.SUPPRESS,
        help="--host and --port in one; IPv6 addresses in brackets",
    )
    group.add_argument("directory", nargs="?", type=Path, metavar="DIR", help="as --data-dir DIR")
    group.add_argument(
        "--store-on-disk",
        action=argparse.BooleanOptionalAction,
        help="with --no-store-on-disk the data is in memory, and the data folder holds env.yaml"
        " only (default: on disk with a data folder)",
    )
    group.add_argument("--testing", action="store_true", help="as --no-store-on-disk")
    group.add_argument("--require-indexes", action="store_true", help="as --indexes enforced")
    group.add_argument(
        "--enable-entity-groups",
        action=argparse.BooleanOptionalAction,
        help=f"as --concurrency-mode {_ENTITY_GROUPS}",
    )
    group.add_argument("--project-id", dest="project", metavar="ID", default=argparse.SUPPRESS,
                       help="as --project")  # fmt: skip
    group.add_argument(
        "--consistency",
        type=_only(
            "1.0 is all there is: in Firestore in Datastore mode, as here, every query sees every"
            " commit before it",
            lambda text: float(text) == 1,
        ),
        metavar="1.0",
        help="only 1.0: every query is strongly consistent",
    )
    group.add_argument(
        "--database-mode",
        type=_only("only datastore-mode is emulated", lambda text: text == "datastore-mode"),
        metavar="datastore-mode",
        help="only datastore-mode",
    )
    group.add_argument(
        "--auto-id-policy",
        type=_only("ids are SCATTERED, as in the service", lambda text: text == "SCATTERED"),
        metavar="SCATTERED",
        help="only SCATTERED",
    )
    for option in (
        *("--use-firestore-in-datastore-mode", "--firestore-in-datastore-mode"),
        *("--allow-remote-shutdown", "--no-store-index-configuration-on-disk"),
        *("--no-regenerate-indexes", "--quiet"),
    ):
        group.add_argument(option, action="store_true", help="accepted: it is always so")
    for option, reason in _REFUSED.items():
        group.add_argument(option, action=_Refused, nargs="?", const=reason, help=argparse.SUPPRESS)


def _only(reason: str, accepts: Callable[[str], bool]) -> Callable[[str], str]:
    """Return a reader of values that accepts some and refuses the others for a reason."""

    def read(text: str) -> str:
        try:
            accepted = accepts(text)
        except ValueError:
            accepted = False
        if not accepted:
            raise argparse.ArgumentTypeError(f"{text[:100]}: {reason}")
        return text

    return read


def settle(options: argparse.Namespace) -> None:
    """Carry out Google's options: set those of this emulator that they stand for.

    `env_dir` becomes the folder for env.yaml, or None.

    Raises:
        OptionError: options contradict each other.
    """
    if options.directory and options.data_dir and options.directory != options.data_dir:
        raise OptionError(f"two data folders: {options.directory} and {options.data_dir}")
    folder = options.data_dir or options.directory
    if options.testing and options.store_on_disk:
        raise OptionError("--testing and --store-on-disk contradict each other")
    if options.store_on_disk and folder is None:
        raise OptionError("--store-on-disk needs --data-dir DIR: there is no default folder")
    in_memory = options.testing or options.store_on_disk is False
    options.env_dir = folder
    options.data_dir = None if in_memory else folder
    if options.require_indexes:
        if options.indexes not in (None, "enforced"):
            raise OptionError(f"--require-indexes and --indexes {options.indexes}")
        options.indexes = "enforced"
    if options.enable_entity_groups:
        if options.concurrency_mode not in (None, _ENTITY_GROUPS):
            raise OptionError(f"--enable-entity-groups and {options.concurrency_mode}")
        options.concurrency_mode = _ENTITY_GROUPS
