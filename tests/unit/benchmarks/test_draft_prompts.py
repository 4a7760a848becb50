from __future__ import annotations

from pathlib import Path

from benchmarks.draft_prompts import HELD_OUT, KINDS, SUBJECTS, main
from soup_engine.prompt_file import read_prompt_file


def test_the_files_hold_many_prompts_and_share_none(tmp_path: Path) -> None:
    files = [tmp_path / "training.jsonl", tmp_path / "held_out.jsonl"]
    assert main([str(file) for file in files]) == 0
    training, held_out = (read_prompt_file(file) for file in files)
    assert training.bad_lines == held_out.bad_lines == ()
    texts = [{p.messages[0].content for p in read.prompts} for read in (training, held_out)]
    assert len(texts[0]) == len(SUBJECTS) * len(KINDS) >= 200
    assert len(texts[1]) == len(HELD_OUT) * len(KINDS)
    assert texts[0].isdisjoint(texts[1])
    before = files[0].read_bytes()
    main([str(file) for file in files])
    assert files[0].read_bytes() == before
    main([*map(str, files), "--seed", "1"])
    assert files[0].read_bytes() != before
