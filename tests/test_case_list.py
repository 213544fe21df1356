"""The list of cases, and the counts in the docs, agree with the tests."""

import re
from pathlib import Path

import test_faults
import test_kills

TESTS = Path(__file__).parent
DOCS = (TESTS.parent / "docs" / "checkpointing.md").read_text()


def listed() -> dict[str, list[str]]:
    """Files with the tests of each case, as the list has them."""
    rows = re.findall(r"^\| (\d+) \|.*\| (.+) \|$", (TESTS / "cases.md").read_text(), re.MULTILINE)
    return {case: re.findall(r"`(.+?)`", files) for case, files in rows}


def test_the_list_names_the_tests_of_each_case():
    found: dict[str, list[str]] = {case: [] for case in listed()}
    for path in sorted(TESTS.rglob("test_*.py")):
        for case in dict.fromkeys(re.findall(r"^def test_case_(\d+)_", path.read_text(), re.MULTILINE)):
            found[case].append(str(path.relative_to(TESTS)))
    assert listed() == found


def test_the_counts_are_those_of_the_tests():
    cases = listed()
    shown = sum(map(bool, cases.values()))
    assert f"{shown} of {len(cases)} are shown" in (TESTS / "cases.md").read_text()
    assert f"{shown} of {len(cases)}" in DOCS
    assert f"{len(test_kills.KILLS + test_kills.TERMINATIONS)} kills" in DOCS
    assert f"{len(test_faults.STOPS)} faults" in DOCS
    assert f"{len(test_faults.SURVIVED)} survived" in DOCS
