"""Whose process is whose: orphans of a guardian, never the children of a living supervisor."""

from courtier.adapters.process import tree
from courtier.domain.attempts import ProcessIdentity


def test_orphans_are_those_with_no_kept_child_above(monkeypatch: object) -> None:
    # 1 guardian; 10, 11 supervisors with trees; 20 an orphan with a child; 30 somebody else's.
    table = {1: 0, 10: 1, 100: 10, 101: 100, 11: 1, 110: 11, 20: 1, 200: 20, 30: 0, 300: 30}
    monkeypatch.setattr(tree, "parents", lambda: table)  # type: ignore[attr-defined]
    monkeypatch.setattr(tree, "identify", lambda pid, boot: ProcessIdentity(boot, pid, 1))  # type: ignore[attr-defined]
    assert {one.pid for one in tree.orphans(1, {10, 11}, "b")} == {20, 200}
    assert {one.pid for one in tree.orphans(1, {10}, "b")} == {11, 110, 20, 200}
