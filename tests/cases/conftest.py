"""Every case is measured twice: by the package and by the reference."""

from __future__ import annotations

import pytest
from case_files import Measure, by_product, by_reference


@pytest.fixture(params=[by_product, by_reference], ids=["product", "reference"])
def measure(request: pytest.FixtureRequest) -> Measure:
    chosen: Measure = request.param
    return chosen
