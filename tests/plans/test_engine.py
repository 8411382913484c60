"""What a statement of the engine reads is its own jobs, whatever else the tables hold and the planner believes."""

from __future__ import annotations

from itertools import chain

import pytest

from tests.plans.acts import ACTS, Act
from tests.plans.plan import explained
from tests.plans.shapes import SHAPES, Shape, believing

pytestmark = [pytest.mark.postgres, pytest.mark.django_db]
PAIRS = [
    pytest.param(name, act, id=f"{act}, beside {name}")
    for name, shape in SHAPES.items()
    for act in ACTS
    if shape is None or shape.letter in act.backlogs
]
MOST = 12  # statements of an act: a claim goes on until it has parked all


@pytest.mark.parametrize(("schema", "act"), PAIRS, indirect=["schema"])
def test_act_costs_the_same_beside_any_backlog(shape: Shape | None, act: Act) -> None:
    """PG-04, and design 5.2."""
    todo = act.prepare()

    with explained(
        believing(shape, needs_statistics=act.needs_statistics), table=shape.table if shape else "", most=MOST
    ) as plans:
        todo()

    assert plans
    table = shape.table if shape else None
    faults = [each.faults(rows=act.rows, pages=act.pages, table=table) for each in chain(*plans)]
    assert not any(faults), "\n\n".join(chain(*faults))
