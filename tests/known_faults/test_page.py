"""Every known fault has a test or a reason, and the page about them is current."""

import pytest

from tests.known_faults.page import PAGE, page
from tests.known_faults.rows import ROWS, SECTIONS, Row
from tests.known_faults.scan import REPO, Test, find_tests, read_tests

TESTS = find_tests()
NAMED = {row for test in TESTS for row in test.rows}


def test_every_row_has_a_test_or_a_reason() -> None:
    open_rows = [
        row.id for row in ROWS.values() if row.id not in NAMED and not row.covered_by and not (row.reason or "").strip()
    ]

    assert open_rows == []


def test_no_row_has_both_a_test_and_a_reason_for_having_none() -> None:
    both = [row.id for row in ROWS.values() if row.reason is not None and (row.id in NAMED or row.covered_by)]

    assert both == []


def test_every_mark_names_a_row() -> None:
    unknown = [(test.node, row) for test in TESTS for row in test.rows if row not in ROWS]

    assert unknown == []


def test_every_marked_test_of_this_folder_says_its_symptom() -> None:
    silent = [
        test.node for test in TESTS if test.node.startswith("tests/known_faults/") and test.rows and not test.docstring
    ]

    assert silent == []


def test_what_a_row_names_as_its_proof_exists() -> None:
    nodes = [test.node for test in TESTS]
    proofs = [proof for row in ROWS.values() for proof in row.covered_by]

    lost = [
        proof
        for proof in proofs
        if not (any(node.startswith(proof) for node in nodes) if "::" in proof else (REPO / proof).exists())
    ]

    assert lost == []


def test_rows_are_in_order_and_each_section_begins_with_one() -> None:
    assert list(ROWS) == sorted(ROWS)
    assert all(first in ROWS for first, _ in SECTIONS)


def test_the_page_is_current() -> None:
    """Else: ``python -m tests.known_faults.page``."""
    assert PAGE.read_text(encoding="utf-8") == page(tuple(ROWS.values()), TESTS)


# -- the tools of this file ------------------------------------------------------------------------------------------


def test_the_scan_reads_marks_of_functions_classes_and_modules() -> None:
    source = '''
import pytest
pytestmark = [pytest.mark.slow, pytest.mark.fault("B001")]
@pytest.mark.fault("B002", "B003")
async def test_one():
    """First line.

    More.
    """
@pytest.mark.fault("B004")
class TestGroup:
    @pytest.mark.parametrize("x", [1])
    @pytest.mark.fault("B005")
    def test_two(self, x): ...
    def helper(self): ...
class Other:
    def test_three(self): ...
'''

    assert read_tests(source, "t.py") == [
        Test("t.py::test_one", ("B001", "B002", "B003"), "First line."),
        Test("t.py::TestGroup::test_two", ("B001", "B004", "B005"), ""),
    ]


def test_the_scan_refuses_rows_that_it_cannot_read() -> None:
    with pytest.raises(TypeError, match="written out"):
        read_tests("@pytest.mark.fault(NAME)\ndef test_one(): ...", "t.py")


def test_the_page_escapes_and_links() -> None:
    text = page([Row("B001", "a | b", "c", ("o/r#1",))], [Test("tests/a.py::TestX::test_y", ("B001",), "")])

    assert text.splitlines()[-1] == r"| B001 | a \| b (o/r#1) | c | [TestX.test_y](../../tests/a.py) |"
