"""The map between the paper's rows and conditions: complete, and the same in every table."""

from __future__ import annotations

import pytest

from loopverify.claims import CLAIMS
from loopverify.claims.p1.conditions import CONDITIONS, PER_LOOP_PENALTY, TABLE_2_ROWS
from loopverify.claims.p1.published import rows, tables

# Tables of quantities rather than conditions, and what is no table.
OTHERS = {"source", "notes", "setup", "T7", "S6"}


def test_names_rows_and_slugs_belong_to_one_condition_each() -> None:
    for of in (
        [row for one in CONDITIONS for row in {one.name, *one.rows}],
        [one.slug for one in CONDITIONS],
        [one.words for one in CONDITIONS],
    ):
        assert len(of) == len(set(of))
    assert (PER_LOOP_PENALTY.loss, PER_LOOP_PENALTY.slug) == ("per_loop", "per_loop.penalty")


@pytest.mark.parametrize("table", sorted(tables().keys() - OTHERS))
def test_every_row_of_the_data_is_that_of_a_condition(table: str) -> None:
    named = {row for one in CONDITIONS for row in (one.name, *one.rows)}
    for size in tables()[table]:
        assert rows(table, size).keys() <= named


def test_table_2_has_its_rows_in_order() -> None:
    assert [one.name for one in TABLE_2_ROWS] == list(rows("T2", "44m")) == list(rows("T2", "129m"))


def test_every_condition_of_a_claim_is_on_the_map() -> None:
    claimed = {condition for claim in CLAIMS.values() if claim.study == "P1" for condition in claim.conditions}
    assert claimed == {one.name for one in CONDITIONS}
