"""Programs that are no Python packages: found, or the test is skipped; under CI they have to be there."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

FROM = {"prometheus": "apt install prometheus", "promtool": "apt install prometheus"}
FROM |= {
    "prometheus-alertmanager": "apt install prometheus-alertmanager",
    "amtool": "apt install prometheus-alertmanager",
    "chromium": "apt install chromium",
    "systemd-analyze": "apt install systemd",
}


def program(name: str, beside: Path | None = None) -> str:
    """Its path; first looked for in the folder `beside`."""
    found = (None if beside is None else shutil.which(name, path=str(beside))) or shutil.which(name)
    if found is None:
        reason = f"{name} is not installed ({FROM.get(name, 'see .ci/run')})"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    return found
