"""`pytest tests/golden --update-golden` writes what replays give now; look at the difference before committing it."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """The option. pytest knows it only if this directory is named on the command line."""
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="Write the expected files instead of comparing.",
    )


@pytest.fixture(scope="session")
def update_golden(request: pytest.FixtureRequest) -> bool:
    """Whether to write instead of comparing."""
    return bool(request.config.getoption("--update-golden", default=False))
