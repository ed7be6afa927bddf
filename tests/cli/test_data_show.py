"""``rlvlm data show``: the prompt as the model reads it, sizes of its pictures, the reference answer."""

from __future__ import annotations

import json

from rlvlm.cli.main import main


def test_a_prompt_of_a_reinforcement_stage_is_shown_as_the_model_reads_it(capsys):
    assert main(["data", "show", "quickstart", "data.template=answer_only"]) == 0
    out = capsys.readouterr().out
    assert "<image>How many red shapes?\nReply with the final answer alone" in out
    assert out.count("<|im_start|>") == 2
    assert "stored 42×42, seen by the model as 42×42, 9 tokens" in out
    assert "reference answer: '1'" in out


def test_a_dialogue_of_a_supervised_stage_is_shown_with_what_is_learned(capsys):
    assert main(["data", "show", "quickstart", "--stage", "warmup", "--row", "3"]) == 0
    out = capsys.readouterr().out
    assert "learned (4 tokens with loss):\n<answer>2</answer><|im_end|>" in out


def test_a_record_without_pictures_and_one_that_is_not_there(tmp_path, capsys):
    path = tmp_path / "d.jsonl"
    path.write_text(json.dumps({"problem": "1+1?", "answer": "2"}) + "\n")
    assert main(["data", "show", "quickstart", f"data.train={path}"]) == 0
    assert "pictures: none" in capsys.readouterr().out
    assert main(["data", "show", "quickstart", f"data.train={path}", "--row", "1"]) == 2
    assert "--row 1 is none of the 1 records" in capsys.readouterr().err


def test_a_model_that_is_not_there_is_said_before_data_is_read(capsys):
    assert main(["data", "show", "clevr_count"]) == 2
    assert "hf download" in capsys.readouterr().err
