"""How a client proves who it is and checks whom it speaks to: bearer token, authority, client certificate.

Given explicitly or by the environment, the same for the trainer's `Monitor` and the operator's commands:

    TRIAGE_TOKEN       the bearer token
    TRIAGE_CA_FILE     PEM of the authority that signed the sidecar's certificate, instead of the public ones
    TRIAGE_CERT_FILE   PEM of the client's own certificate, where the sidecar asks for one; its key in the same file
    TRIAGE_KEY_FILE    or in this one

No error repeats a token.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping

from triage_monitor.errors import ConfigError

_TOKEN = re.compile(r"[!-~]{1,4096}")


def checked_token(token: object) -> str:
    if not isinstance(token, str) or _TOKEN.fullmatch(token) is None:
        raise ConfigError("token must be a text of printable ASCII without spaces")
    return token


def token_of(given: object, env: Mapping[str, str]) -> str | None:
    """The token that was given, else the environment's; None when there is none. Space around the latter is cut."""
    if given is not None:
        return checked_token(given)
    found = env.get("TRIAGE_TOKEN", "").strip()
    return checked_token(found) if found else None


def tls_of(env: Mapping[str, str]) -> ssl.SSLContext | None:
    """What the environment says about TLS; None when it says nothing. ConfigError for files that cannot be used."""
    authority, certificate, key = (env.get(f"TRIAGE_{name}_FILE") or None for name in ("CA", "CERT", "KEY"))
    if authority is None and certificate is None:
        return None
    return tls_context(authority, certificate, key)


def tls_context(
    ca_file: str | None = None, cert_file: str | None = None, key_file: str | None = None
) -> ssl.SSLContext:
    """A context that checks the server's name and certificate, and shows the client's own where there is one."""
    try:
        context = ssl.create_default_context(cafile=ca_file)
        if cert_file is not None:
            context.load_cert_chain(cert_file, key_file, _no_password)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        names = ", ".join(name for name in (ca_file, cert_file, key_file) if name)
        raise ConfigError(f"{names} cannot be used for TLS: {error}") from None
    return context


def _no_password() -> str:
    """Instead of asking at the terminal for the key's."""
    raise ValueError("the key is encrypted; give it without a passphrase")
