"""The releases that are installed. Apart from the hooks, which some cannot be imported with."""

from __future__ import annotations

from importlib import metadata


def installed_release(package: str = "google-cloud-ndb") -> str:
    """The version of a package, for messages. Bundles may not know it."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "of an unknown version"
