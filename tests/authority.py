"""A private authority of certificates, as a company or a managed server has one."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import NamedTuple

from tests.servers import real


class Certificate(NamedTuple):
    """A certificate and its key, in files."""

    certificate: Path
    key: Path


class Authority:
    """An authority.

    Args:
        folder: the folder of its files.
        name: its name.

    Attributes:
        certificate: its own certificate: clients that have it trust those that it issues.
    """

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._folder = folder
        self.certificate = folder / f"{name}.pem"
        self._key = folder / f"{name}.key"
        self._openssl(
            *("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-subj", f"/CN={name}", "-addext", "keyUsage=critical,keyCertSign,cRLSign"),
            *("-keyout", str(self._key), "-out", str(self.certificate)),
        )

    def issue(self, name: str, *names: str) -> Certificate:
        """Issue a certificate for names like `DNS:localhost` and `IP:127.0.0.1`."""
        made = Certificate(self._folder / f"{name}.pem", self._folder / f"{name}.key")
        request, extensions = self._folder / f"{name}.csr", self._folder / f"{name}.ext"
        extensions.write_text(f"subjectAltName={','.join(names)}\n")
        self._openssl(
            *("req", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={name}"),
            *("-keyout", str(made.key), "-out", str(request)),
        )
        self._openssl(
            *("x509", "-req", "-in", str(request), "-days", "2", "-CAcreateserial"),
            *("-CA", str(self.certificate), "-CAkey", str(self._key)),
            *("-extfile", str(extensions), "-out", str(made.certificate)),
        )
        made.key.chmod(0o644)  # for servers that run as another user
        return made

    def _openssl(self, *arguments: str) -> None:
        subprocess.run([real("openssl", "openssl"), *arguments], check=True, capture_output=True)
