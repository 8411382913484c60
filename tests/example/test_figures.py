"""The table at the end of the demo."""

from __future__ import annotations

from dataclasses import replace

import pytest

from demo.figures import Figures, Plan, judge, percentile, table

PLAN = Plan(orders=200, accounts=59, products=3503, probes=101, deaths=7)
RIGHT = Figures(
    enqueued=PLAN.jobs,
    succeeded=PLAN.jobs - 7,
    retried=41,
    rescued=5,
    died=7,
    replayed=7,
    audited=7,
    unsettled=0,
    orders=200,
    invoices=200,
    missing_numbers=0,
    mails=200,
    doubled=0,
    documents=3503,
    found=3,
    reports=1,
    idle=(4.0, 5.0, 9.0),
    all_runs=(4.0, 5.0, 9.0, 2000.0),
)


def test_a_plan_counts_its_jobs() -> None:
    assert PLAN.jobs == 400 + 59 + 8 + 1 + 101 + 7
    assert replace(PLAN, products=3500).jobs == PLAN.jobs  # a full last page is followed by an empty one


def test_everything_right_is_right() -> None:
    assert all(line.is_right for line in judge(RIGHT, PLAN))


@pytest.mark.parametrize(
    ("wrong", "label"),
    [
        ({"enqueued": 1}, "jobs enqueued"),
        ({"succeeded": 1}, "  succeeded"),
        ({"retried": 0}, "  runs retried"),
        ({"rescued": 0}, "  runs rescued"),
        ({"died": 8}, "  died"),
        ({"replayed": 6}, "  replayed"),
        ({"audited": 6}, "  in the admin's log"),
        ({"unsettled": 1}, "  still unsettled"),
        ({"orders": 199}, "orders placed"),
        ({"invoices": 199}, "invoices"),
        ({"missing_numbers": 1}, "  numbers missing"),
        ({"mails": 201}, "mails received"),
        ({"doubled": 1}, "  doubled"),
        ({"documents": 3502}, "search index rows"),
        ({"found": 0}, "  found by the sample"),
        ({"reports": 2}, "nightly reports"),
        ({"idle": ()}, "commit to start, idle"),
    ],
)
def test_a_wrong_figure_is_named(wrong: dict[str, object], label: str) -> None:
    lines = judge(replace(RIGHT, **wrong), PLAN)  # type: ignore[arg-type]

    assert [line.label for line in lines if not line.is_right] == [label]
    assert "WRONG: must be" in table(lines)


def test_the_table_is_aligned() -> None:
    rows = table(judge(RIGHT, PLAN)).splitlines()

    assert len({row.index("200") for row in rows if row.strip().startswith(("orders", "invoices", "mails"))}) == 1
    assert "p50 5 ms, p99 9 ms (3 jobs)" in rows[-2]


@pytest.mark.parametrize(
    ("values", "rank", "expected"),
    [([7], 50, 7), ([7], 99, 7), ([1, 2], 50, 1), ([3, 1, 2], 99, 3), (list(range(1, 101)), 99, 99)],
)
def test_a_percentile_is_one_of_the_values(values: list[float], rank: int, expected: float) -> None:
    assert percentile(values, rank) == expected
