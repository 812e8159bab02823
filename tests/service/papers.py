"""An authority of our own and what it issues, for tests over TLS."""

from __future__ import annotations

from pathlib import Path

import trustme


class Papers:
    """An authority with a server's and a client's certificate, as files."""

    def __init__(self, home: Path) -> None:
        self.authority = trustme.CA()
        self.ca = str(home / "ca.pem")
        self.authority.cert_pem.write_to_path(self.ca)
        self.server = self._issued(home / "server.pem", "127.0.0.1", "localhost")
        self.client = self._issued(home / "client.pem", "trainer@example.org")
        self.elsewhere = self._issued(home / "elsewhere.pem", "elsewhere.example")

    def _issued(self, path: Path, *names: str) -> str:
        self.authority.issue_cert(*names).private_key_and_cert_chain_pem.write_to_path(str(path))
        return str(path)
