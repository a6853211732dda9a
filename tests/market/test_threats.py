"""What docs/market-threats.md names as shown by a test is."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^\| (\d+) \|.*\| ([^|]+) \|$", re.MULTILINE)


def test_every_threat_has_its_tests_and_they_are_there() -> None:
    rows = ROW.findall((ROOT / "docs" / "market-threats.md").read_text())
    assert [int(number) for number, _ in rows] == list(range(1, 41))
    for number, shown_by in rows:
        names = re.findall(r"`(tests/[^`]+)`", shown_by)
        assert names, number
        for name in names:
            path, _, test = name.partition("::")
            assert (ROOT / path).exists(), name
            assert not test or f"def {test}(" in (ROOT / path).read_text(), name
