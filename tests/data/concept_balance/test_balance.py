"""Concept balance: exact neighbours, weights, draws with the right odds, reports."""

from __future__ import annotations

import functools
import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import transformers
from PIL import Image

from rlvlm.cli.main import main
from rlvlm.data.concept_balance import (
    BalanceSettings,
    ClipModel,
    Vocabulary,
    balance,
    concept_counts,
    coverage,
    embed_pictures,
    embeddings,
    gini,
    inverse_weights,
    nearest,
    nearest_concepts,
    read_embeddings,
    read_vocabulary,
    resample,
)
from rlvlm.data.config import DataConfig
from rlvlm.data.jobs import Job
from rlvlm.data.records import register_format
from rlvlm.data.sources import open_sources
from rlvlm.data.workers import SourceTask
from rlvlm.errors import ConfigError, DataError
from tests import tiny
from tests.data.helpers import counting_rows, write_jsonl
from tests.data.offline_packing.test_shards import run_in_child


def one_name_each(count: int) -> Vocabulary:
    return Vocabulary.of([[f"concept {number}"] for number in range(count)])


def brute_force(pictures: np.ndarray, names: np.ndarray, vocabulary: Vocabulary, k: int) -> np.ndarray:
    unit = names / np.linalg.norm(names, axis=1, keepdims=True)
    near = np.maximum.reduceat(pictures.astype(np.float64) @ unit.T, vocabulary.starts, axis=1)
    return np.argsort(-near, axis=1, kind="stable")[:, :k]


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("_PICTURES", 40), ("_ROWS", 16), ("_COLUMNS", 32)):
        monkeypatch.setattr(nearest, name, value)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("k", [1, 5, 50])
def test_neighbours_are_exact_in_any_chunks(tmp_path: Path, k: int) -> None:
    rng = np.random.default_rng(0)
    pictures, names = rng.normal(size=(150, 24)).astype(np.float16), rng.normal(size=(333, 24)).astype(np.float32)
    vocabulary = one_name_each(333)
    found = nearest_concepts(pictures, names, vocabulary, k, tmp_path, quiet=True)
    assert found.tolist() == brute_force(pictures, names, vocabulary, k).tolist()
    assert isinstance(found, np.memmap)


@pytest.mark.usefixtures("small_chunks")
def test_a_concept_is_as_near_as_the_nearest_of_its_names(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    vocabulary = Vocabulary.of([[f"{number}", f"{number}号"][: 1 + number % 2] for number in range(100)])
    names = rng.normal(size=(len(vocabulary.texts), 16)).astype(np.float32)
    pictures = rng.normal(size=(70, 16)).astype(np.float32)
    found = nearest_concepts(pictures, names, vocabulary, 4, tmp_path, quiet=True)
    assert found.tolist() == brute_force(pictures, names, vocabulary, 4).tolist()
    assert all(len(set(row)) == 4 for row in found.tolist()), "a picture has a concept once, in whatever language"


@pytest.mark.usefixtures("small_chunks")
def test_pictures_without_an_embedding_have_no_concepts(tmp_path: Path) -> None:
    pictures = np.random.default_rng(2).normal(size=(5, 8)).astype(np.float32)
    pictures[3], pictures[1, 4], pictures[0] = np.nan, np.inf, 0.0
    found = nearest_concepts(pictures, np.eye(8, dtype=np.float32), one_name_each(8), 2, tmp_path, quiet=True)
    assert found[[0, 1, 3]].tolist() == [[-1, -1]] * 3
    weights = inverse_weights(found, concept_counts(found, 8))
    assert weights[[0, 1, 3]].tolist() == [0, 0, 0]
    assert resample(weights, 2, replace=False).tolist() == [2, 4]


def test_faiss_finds_the_same(tmp_path: Path) -> None:
    pytest.importorskip("faiss")
    rng = np.random.default_rng(3)
    pictures, names = rng.normal(size=(50, 16)).astype(np.float32), rng.normal(size=(200, 16)).astype(np.float32)
    ours = nearest_concepts(pictures, names, one_name_each(200), 5, tmp_path / "a", quiet=True)
    theirs = nearest_concepts(pictures, names, one_name_each(200), 5, tmp_path / "b", faiss=True, quiet=True)
    assert ours.tolist() == theirs.tolist()


def killed_at(part: int, work: Any) -> None:
    """Runs the work, and kills the process when this part of a job is about to be written."""
    plain = nearest.write_atomic

    def deadly(path: Path, content: Any) -> None:
        if path.name.startswith(f"{part:06d}"):
            os.kill(os.getpid(), signal.SIGKILL)
        plain(path, content)

    nearest.write_atomic = deadly  # type: ignore[assignment]
    work()


@pytest.mark.usefixtures("small_chunks")
def test_a_killed_search_goes_on_and_finds_the_same(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    pictures, names = rng.normal(size=(150, 8)).astype(np.float32), rng.normal(size=(60, 8)).astype(np.float32)
    search = functools.partial(nearest_concepts, pictures, names, one_name_each(60), 3, quiet=True)
    whole = np.array(search(folder=tmp_path / "whole"))
    assert (
        run_in_child(functools.partial(killed_at, 2, functools.partial(search, folder=tmp_path / "killed")))
        == -signal.SIGKILL
    )
    assert Job(tmp_path / "killed", json.loads((tmp_path / "killed" / "job.json").read_text())).finished(4, ".npy") == [
        True,
        True,
        False,
        False,
    ]
    assert np.array_equal(search(folder=tmp_path / "killed"), whole)
    grouped = Vocabulary.of([[str(n), f"also {n}"] for n in range(30)])
    for changed in (
        (pictures, names, one_name_each(60), 4),
        (pictures[::-1], names, one_name_each(60), 3),
        (pictures, names[::-1], one_name_each(60), 3),
        (pictures, names, grouped, 3),
    ):
        with pytest.raises(DataError, match="other settings"):
            nearest_concepts(*changed, tmp_path / "killed", quiet=True)


def test_weights_are_the_mean_of_inverse_counts() -> None:
    found = np.array([[0, 1], [0, 2], [0, 1], [0, 1]])
    counts = concept_counts(found, 4)
    assert counts.tolist() == [4, 3, 1, 0]
    expected = np.array([1 / 4 + 1 / 3, 1 / 4 + 1, 1 / 4 + 1 / 3, 1 / 4 + 1 / 3])
    assert inverse_weights(found, counts) == pytest.approx(expected / expected.sum())
    assert inverse_weights(found, counts, power=0) == pytest.approx(np.full(4, 0.25))
    assert concept_counts(found, 4, np.array([1, 1])).tolist() == [2, 0, 2, 0]


@pytest.mark.parametrize("replace", [True, False])
def test_draws_have_the_odds_of_their_weights(replace: bool) -> None:
    weights = np.array([0.5, 0.3, 0.15, 0.05, 0.0])
    drawn = np.array([resample(weights, 1, replace=replace, seed=seed)[0] for seed in range(4000)])
    assert np.bincount(drawn, minlength=5) / 4000 == pytest.approx(weights, abs=0.03)


def test_without_replacement_second_draws_are_from_what_is_left() -> None:
    weights = np.array([0.6, 0.3, 0.1])
    pairs = [tuple(resample(weights, 2, replace=False, seed=seed).tolist()) for seed in range(4000)]
    both = 0.6 * 0.3 / 0.4 + 0.3 * 0.6 / 0.7  # rows 0 and 1 in either order
    assert pairs.count((0, 1)) / 4000 == pytest.approx(both, abs=0.03)
    assert len(set(resample(np.ones(50), 50, replace=False).tolist())) == 50


def test_wrong_draws_say_so() -> None:
    with pytest.raises(ConfigError, match="6 rows can't be drawn without replacement from 5"):
        resample(np.ones(5), 6, replace=False)
    with pytest.raises(ConfigError, match="no picture has a concept"):
        resample(np.zeros(5), 1, replace=True)
    for draw in (lambda: resample(np.ones(5), 0, replace=True), lambda: BalanceSettings(0)):
        with pytest.raises(ConfigError, match="at least 1 row"):
            draw()
    with pytest.raises(ConfigError, match="power"):
        inverse_weights(np.array([[0]]), np.array([1]), 3)


def test_gini_and_coverage() -> None:
    assert gini(np.array([5, 5, 5, 5])) == pytest.approx(0)
    assert gini(np.array([0, 0, 0, 8])) == pytest.approx(0.75)
    values = np.random.default_rng(0).integers(0, 50, 200)
    pairwise = np.abs(values[:, None] - values[None]).sum() / (2 * len(values) ** 2 * values.mean())
    assert gini(values) == pytest.approx(pairwise)
    assert gini(np.zeros(3, int)) == 0
    assert coverage(np.array([0, 1, 5, 0])) == 0.5
    assert coverage(np.array([0, 1, 5, 0]), least=2) == 0.25


def long_tailed(count: int, concepts: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Pictures whose concepts follow Zipf's law, and the concepts."""
    rng = np.random.default_rng(seed)
    names = rng.normal(size=(concepts, 32)).astype(np.float32)
    chance = 1 / np.arange(1, concepts + 1)
    own = rng.choice(concepts, count, p=chance / chance.sum())
    return (names[own] + 0.3 * rng.normal(size=(count, 32))).astype(np.float32), names


@pytest.mark.parametrize("replace", [True, False])
def test_balancing_flattens_a_long_tail(tmp_path: Path, replace: bool) -> None:
    pictures, names = long_tailed(4000, 50)
    vocabulary = one_name_each(50)
    found = nearest_concepts(pictures, names, vocabulary, 1, tmp_path / "nearest", quiet=True)
    report = balance(found, vocabulary, BalanceSettings(1000, replace), tmp_path)
    assert report["gini_after"] < (0.15 if replace else 0.25) < 0.5 < report["gini_random"]
    assert report["gini_random"] == pytest.approx(report["gini_before"], abs=0.05), (
        "a random draw leaves the tail as it is"
    )
    assert report["coverage_after"] == 1.0
    picked = pq.read_table(tmp_path / "picked.parquet").to_pydict()
    assert len(picked["row"]) == 1000
    assert (len(set(picked["row"])) == 1000) == (not replace)
    weights = pq.read_table(tmp_path / "weights.parquet")["weight"].to_numpy()
    assert weights.sum() == pytest.approx(1)
    assert picked["weight"] == weights[picked["row"]].tolist()
    concepts = pq.read_table(tmp_path / "concepts.parquet").to_pydict()
    assert (sum(concepts["before"]), sum(concepts["after"])) == (4000, 1000)
    assert Image.open(tmp_path / "long_tail.png").size[0] > 400
    page = (tmp_path / "report.html").read_text()
    assert "<svg" in page
    assert "gini before" in page


def test_equal_input_gives_equal_files(tmp_path: Path) -> None:
    found = np.random.default_rng(0).integers(0, 20, (300, 3)).astype(np.int32)
    for name in "ab":
        balance(found, one_name_each(20), BalanceSettings(100, seed=7), tmp_path / name)
    for file in sorted((tmp_path / "a").iterdir()):
        assert file.read_bytes() == (tmp_path / "b" / file.name).read_bytes(), file.name
    balance(found, one_name_each(20), BalanceSettings(100, seed=8), tmp_path / "c")
    assert (tmp_path / "c" / "picked.parquet").read_bytes() != (tmp_path / "a" / "picked.parquet").read_bytes()


def test_vocabularies_in_one_or_more_languages(tmp_path: Path) -> None:
    text, rows = tmp_path / "v.txt", tmp_path / "v.jsonl"
    text.write_text("cat\t猫\n\ndog\ncat\tkitten\n", encoding="utf-8")
    read = read_vocabulary(str(text))
    assert (read.concepts, read.texts, read.starts.tolist()) == (["cat", "dog"], ["cat", "猫", "kitten", "dog"], [0, 3])
    rows.write_text('{"en": "cat", "zh": ["猫", "貓"]}\n"dog"\n["sun", "太阳"]\n', encoding="utf-8")
    assert read_vocabulary(str(rows)).texts == ["cat", "猫", "貓", "dog", "sun", "太阳"]
    for content, message in (
        ("{broken", "row 0: no valid JSON"),
        ("[1]", "row 0: names are text"),
        ('""', "at least one name"),
        ("", "no concepts"),
        (b"\xff\xfe", "no UTF-8 text"),
    ):
        rows.write_bytes(content if isinstance(content, bytes) else content.encode())
        with pytest.raises(DataError, match=message):
            read_vocabulary(str(rows))
    with pytest.raises(DataError, match="does not exist"):
        read_vocabulary(str(tmp_path / "none.txt"))


def test_embeddings_from_npy_and_parquet(tmp_path: Path) -> None:
    array = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
    np.save(tmp_path / "a.npy", array)
    pq.write_table(
        pa.table({"embedding": array.tolist(), "ragged": [[1.0]] * 5 + [[1.0, 2.0]]}), tmp_path / "a.parquet"
    )
    assert np.array_equal(read_embeddings(str(tmp_path / "a.npy")), array)
    assert np.allclose(read_embeddings(str(tmp_path / "a.parquet")), array)
    np.save(tmp_path / "b.npy", np.zeros(3))
    (tmp_path / "d.npy").write_bytes(b"no array")
    (tmp_path / "e.npy").write_bytes((tmp_path / "a.npy").read_bytes()[:150])
    for path, column, message in (
        ("a.parquet", "ragged", "several lengths"),
        ("a.parquet", "none", "no column 'none'"),
        ("b.npy", "embedding", r"shape \[3\]"),
        ("c.npy", "embedding", "do not exist"),
        ("d.npy", "embedding", "no .npy file"),
        ("e.npy", "embedding", "no .npy file"),
    ):
        with pytest.raises(DataError, match=message):
            read_embeddings(str(tmp_path / path), column)
    with pytest.raises(DataError, match="4 dimensions and concepts 5"):
        nearest_concepts(array, np.zeros((2, 5), np.float32), one_name_each(2), 1, tmp_path / "x")
    with pytest.raises(DataError, match="2 concept embeddings for 3 names"):
        nearest_concepts(array, np.zeros((2, 4), np.float32), one_name_each(3), 1, tmp_path / "x")
    with pytest.raises(DataError, match="top_k is between 1 and the 2"):
        nearest_concepts(array, np.zeros((2, 4), np.float32), one_name_each(2), 3, tmp_path / "x")


@pytest.fixture(scope="module")
def clip_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny random CLIP."""
    folder = tmp_path_factory.mktemp("clip")
    tokenizer = tiny.tokenizer()
    small = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    ids = {"bos_token_id": 0, "eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    config = transformers.CLIPConfig(
        text_config={**small, **ids, "vocab_size": len(tokenizer), "max_position_embeddings": 64},
        vision_config={**small, "image_size": 56, "patch_size": 14},
        projection_dim=16,
    )
    transformers.CLIPModel(config).save_pretrained(folder)
    tokenizer.model_max_length = 64
    tokenizer.save_pretrained(folder)
    side = {"height": 56, "width": 56}
    transformers.CLIPImageProcessorPil(size={"shortest_edge": 56}, crop_size=side).save_pretrained(folder)
    return str(folder)


def test_embeddings_of_a_clip_model_in_batches_equal_those_one_by_one(tmp_path: Path, clip_folder: str) -> None:
    rows = [*counting_rows(tmp_path, 7), {"problem": "without a picture"}]
    task = SourceTask(DataConfig(train=write_jsonl(tmp_path / "a.jsonl", rows)))
    model = ClipModel(clip_folder)
    made = embed_pictures(task, model, tmp_path / "out", batch=3, quiet=True)
    (source,) = open_sources(task.config)
    for row in range(7):
        alone = model.embed_pictures([Image.open(tmp_path / f"{row}.png")])
        assert np.allclose(made[row], alone[0], atol=1e-5)
    assert np.isnan(made[7]).all()
    assert len(source) == 8
    with pytest.raises(ConfigError, match="no config.json"):
        ClipModel(str(tmp_path))


def test_texts_of_a_model_without_an_attention_mask_do_not_depend_on_their_batch(tmp_path: Path) -> None:
    tokenizer = tiny.tokenizer()
    small = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.SiglipConfig(
        text_config={**small, "vocab_size": len(tokenizer), "max_position_embeddings": 64},
        vision_config={**small, "image_size": 56, "patch_size": 14},
    )
    transformers.SiglipModel(config).save_pretrained(tmp_path)
    tokenizer.model_max_length = 64
    tokenizer.save_pretrained(tmp_path)
    note = tmp_path / "tokenizer_config.json"
    note.write_text(json.dumps({**json.loads(note.read_text()), "model_input_names": ["input_ids"]}))
    transformers.SiglipImageProcessorPil(size={"height": 56, "width": 56}).save_pretrained(tmp_path)
    model = ClipModel(str(tmp_path))
    texts = ["a dog", "a much longer name of a rather rare concept"]
    together, alone = model.embed_texts(texts), [model.embed_texts([text])[0] for text in texts]
    assert np.allclose(together, alone, atol=1e-5)
    assert model.embed_pictures([Image.new("RGB", (80, 60))]).shape == together[:1].shape


@register_format("deadly_pictures_for_a_test", override=True)
def deadly_pictures(row: Any, *, at: int, note: str) -> dict[str, Any]:
    """Flat rows, and a kill -9 of the process at the n-th row it reads, once."""
    path = Path(note)
    calls = 1 + (int(path.read_text()) if path.exists() else 0)
    path.write_text(str(calls))
    if calls == at:
        os.kill(os.getpid(), signal.SIGKILL)
    return dict(row)


@pytest.mark.parametrize("at", [1, 7, 10])
def test_killed_embedding_goes_on_and_makes_the_same(
    tmp_path: Path, clip_folder: str, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    monkeypatch.setattr(embeddings, "_CHUNK", 4)
    path, note = write_jsonl(tmp_path / "a.jsonl", counting_rows(tmp_path, 10)), tmp_path / "reads"
    node = {"path": path, "format": {"name": "deadly_pictures_for_a_test", "at": at, "note": str(note)}}
    whole = embed_pictures(SourceTask(DataConfig(train=path)), ClipModel(clip_folder), tmp_path / "whole", quiet=True)

    def work() -> None:
        embed_pictures(SourceTask(DataConfig(train=node)), ClipModel(clip_folder), tmp_path / "killed", quiet=True)

    assert run_in_child(work) == -signal.SIGKILL
    assert run_in_child(work) == 0
    assert int(note.read_text()) <= 10 + 4, "finished parts were not read again"
    killed = np.load(tmp_path / "killed" / "embeddings.npy")
    assert killed.tobytes() == whole.tobytes()


def test_the_command_balances_given_embeddings_and_makes_its_own(
    tmp_path: Path, clip_folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pictures, names = long_tailed(200, 10)
    np.save(tmp_path / "p.npy", pictures)
    np.save(tmp_path / "n.npy", names)
    (tmp_path / "v.txt").write_text("\n".join(f"concept {number}" for number in range(10)))
    base = ["data", "balance", "--vocabulary", str(tmp_path / "v.txt"), "--count", "20", "--top-k", "2"]
    given = ["--pictures", str(tmp_path / "p.npy"), "--names", str(tmp_path / "n.npy")]
    assert main([*base, *given, "--out", str(tmp_path / "given")]) == 0
    assert json.loads(capsys.readouterr().out)["picked"] == 20
    file = write_jsonl(tmp_path / "a.jsonl", counting_rows(tmp_path, 30))
    made = ["--clip", clip_folder, "--source", file, "--text-template", "a photo of {}"]
    assert main([*base, *made, "--out", str(tmp_path / "made")]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == 30
    (source,) = open_sources(DataConfig(train={"path": file, "rows": str(tmp_path / "made" / "picked.parquet")}))
    assert len(source) == 20, "what was picked is what a source reads"
    assert main([*base, *given, "--count", "201", "--out", str(tmp_path / "none")]) == 2
    assert "201 rows can't be drawn without replacement from 200" in capsys.readouterr().err
    assert not (tmp_path / "none").exists(), "said before the search"
    assert main([*base, "--out", str(tmp_path / "none")]) == 2
    assert "--clip and --source" in capsys.readouterr().err


@pytest.mark.parametrize("value", [np.nan, np.inf, 0.0])
def test_a_concept_name_without_a_usable_embedding_is_named(value: float, tmp_path: Path) -> None:
    names = np.eye(3, dtype=np.float32)
    names[1] = value
    with pytest.raises(DataError, match=r"concept name 'concept 1' \(row 1\) is NaN, infinite or all zeros, as 1 of 3"):
        nearest_concepts(np.eye(3, dtype=np.float32), names, one_name_each(3), 1, tmp_path, quiet=True)


def test_equally_near_concepts_go_by_their_number(tmp_path: Path) -> None:
    names = np.ones((40, 4), np.float32)
    found = nearest_concepts(np.ones((5, 4), np.float32), names, one_name_each(40), 7, tmp_path, quiet=True)
    assert found.tolist() == [list(range(7))] * 5


def test_one_changed_embedding_among_many_is_no_finished_work(tmp_path: Path) -> None:
    pictures = np.random.default_rng(0).normal(size=(1000, 4)).astype(np.float32)
    names = np.eye(4, dtype=np.float32)
    nearest_concepts(pictures, names, one_name_each(4), 1, tmp_path, quiet=True)
    pictures[501] *= -1
    with pytest.raises(DataError, match="pictures_hash"):
        nearest_concepts(pictures, names, one_name_each(4), 1, tmp_path, quiet=True)
