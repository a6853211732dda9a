"""The check of promised latencies: it fails for each broken promise, and says which."""

import pytest

from bench import check
from bench.check import PROMISES, Promise, broken, table

KEPT, BROKEN = Promise("kept", 5.0, "s", "docs/a.md"), Promise("broken", 5.0, "s", "docs/b.md")


def test_each_broken_promise_is_a_line_and_what_was_not_measured_is_none() -> None:
    promises = (KEPT, BROKEN, Promise("not measured", 0.0, "s", "docs/c.md"))
    found = {"kept": 5.0, "broken": 5.1}
    assert list(broken(promises, found)) == ["BROKEN: broken: 5.1 s, at most 5 is promised in docs/b.md"]
    assert list(broken(promises, found, times=2)) == []
    assert len(list(broken(promises, found, times=0))) == 2
    assert list(broken((KEPT,), {"kept": float("nan")}))
    assert "| kept | 5 s | 5 | docs/a.md |" in table(promises, found)


@pytest.mark.parametrize(("times", "status"), [("1", 0), ("0", 1)])
def test_the_command_fails_if_a_bound_is_broken(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], times: str, status: int
) -> None:
    promised = PROMISES[0]
    monkeypatch.setattr(check, "MEASURES", {"quick": lambda: {promised.name: promised.most}})
    with pytest.raises(SystemExit) as ended:
        check.main(["--times", times])
    assert ended.value.code == status
    assert (f"BROKEN: {promised.name}" in capsys.readouterr().out) == bool(status)


def test_what_never_happens_is_a_broken_promise(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def never() -> dict[str, float]:
        raise AssertionError("it did not happen in time")

    monkeypatch.setattr(check, "MEASURES", {"slow": never})
    with pytest.raises(SystemExit) as ended:
        check.main([])
    assert ended.value.code == 1
    assert "BROKEN: slow" in capsys.readouterr().out


def test_every_promise_has_a_name_of_its_own() -> None:
    assert len({promise.name for promise in PROMISES}) == len(PROMISES)
