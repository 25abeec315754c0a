"""A private authority of certificates, as a company or a managed server has one."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.servers import real


class Authority:
    """An authority.

    Args:
        folder: the folder of its files.

    Attributes:
        certificate: its own certificate: clients that have it trust those that it issues.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.certificate, self._key = self._make(
            "authority", "basicConstraints=critical,CA:TRUE", "keyUsage=critical,keyCertSign"
        )

    def issue(self, name: str) -> tuple[Path, Path]:
        """Return a certificate for a host of that name, and its key."""
        return self._make(
            f"of-{name}",
            *(f"subjectAltName=DNS:{name}", "basicConstraints=critical,CA:FALSE"),
            *("-CA", str(self.certificate), "-CAkey", str(self._key)),
        )

    def _make(self, name: str, *extensions: str) -> tuple[Path, Path]:
        certificate, key = self._folder / f"{name}.pem", self._folder / f"{name}.key"
        options = [
            part for each in extensions for part in (("-addext", each) if "=" in each else (each,))
        ]
        subprocess.run(
            [
                *(real("openssl", "openssl"), "req", "-x509", "-newkey", "rsa:2048", "-nodes"),
                *("-days", "2", "-subj", f"/CN={name}", *options),
                *("-keyout", str(key), "-out", str(certificate)),
            ],
            check=True,
            capture_output=True,
        )
        key.chmod(0o644)  # for servers that run as another user
        return certificate, key
