from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import processes
from tests.wire import Wire


@pytest.fixture
def workers(transactional_db: None, process_environment: dict[str, str], tmp_path: Path) -> Iterator[processes.Workers]:
    """Start worker processes on this test's database."""
    with processes.workers(process_environment, tmp_path) as started:
        yield started


@pytest.fixture
def wire(transactional_db: None) -> Iterator[Wire]:
    """Lead to this test's database. Ask for it before `workers`: so it outlives them."""
    with Wire.to_database() as wire:
        yield wire
