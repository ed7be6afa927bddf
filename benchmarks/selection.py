"""Does selection pay? GRPO on the selected half of the quickstart's prompts against GRPO on a random half, over three seeds.

For each seed the warmed-up policy answers every prompt of a pool eight times. The selected half are the prompts with the widest gap
between pass@8 and pass@1 among those that the rules keep; the other side draws as many from the whole pool. Both train alike
and are asked the same fresh questions, halfway and at the end.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rlvlm.conf import load_recipe, resolve_stages
from rlvlm.data.selection import SelectionRules, read_answers, select
from rlvlm.pipelines.answers import answer_prompts
from rlvlm.pipelines.run import train
from rlvlm.tracking.rundir import read_metrics

POOL, STEPS, SEEDS = 1024, 100, (0, 1, 2)


def warm_up(folder: Path, seed: int) -> str:
    """The quickstart's supervised warm-up; returns where its policy lies."""
    stages = resolve_stages(load_recipe("quickstart", [f"run.seed={seed}", f"run.dir={folder}"]))
    train(stages[:1], folder / f"warm-{seed}", show=False)
    return str(folder / f"warm-{seed}" / "policy")


def halves(folder: Path, model: str, seed: int) -> dict[str, str]:
    """Files with the rows of the selected half and of a random one."""
    overrides = [
        f"run.seed={seed}",
        "rollout.n=8",
        f"data.train={{name: shapes, size: {POOL}}}",
        f"model={{path: {model}, build: null}}",
    ]
    stage = resolve_stages(load_recipe("quickstart", overrides))[-1]
    answer_prompts(stage, folder / "answers")
    report = select(read_answers(folder / "answers"), SelectionRules(max_pass_1=0.9), folder)
    rates = f"pass@1 {report['mean_pass_1']:.3f}, pass@8 {report['mean_pass_k']:.3f}"
    print(f"  seed {seed}: of {report['prompts']} prompts {report['reasons']}; {rates}")
    scores = pq.read_table(folder / "scores.parquet").to_pandas()
    kept = scores[scores.kept].sort_values(["gap", "row"], ascending=[False, True]).row.to_numpy()[: POOL // 2]
    drawn = np.sort(np.random.default_rng(seed).choice(POOL, len(kept), replace=False))
    files = {}
    for name, rows in (("selected", np.sort(kept)), ("random", drawn)):
        files[name] = str(folder / f"{name}.parquet")
        pq.write_table(pa.table({"row": rows}), files[name])
    return files


def reinforce(folder: Path, model: str, rows: str, seed: int) -> dict[str, float]:
    """GRPO from the warmed-up policy on those rows; accuracies on fresh prompts."""
    overrides = [
        f"run.seed={seed}",
        f"run.steps={STEPS}",
        f"run.eval_every={STEPS // 2}",
        f"data.train={{name: shapes, size: {POOL}, rows: {rows}}}",
        f"model={{path: {model}, build: null}}",
    ]
    stage = resolve_stages(load_recipe("quickstart", overrides))[-1]
    stage.init = None
    summary = train([stage], folder, show=False)
    halfway = [
        record["eval/accuracy"] for record in read_metrics(folder / "metrics.jsonl") if "eval/accuracy" in record
    ]
    found = {name: summary[name] for name in ("accuracy_before", "accuracy_after", "greedy_after")}
    return {**found, "accuracy_halfway": halfway[0]}


def main() -> None:
    """Prints a table, then one line of JSON."""
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    results: dict[str, list[dict[str, float]]] = {"selected": [], "random": []}
    with tempfile.TemporaryDirectory() as folder:
        for seed in SEEDS:
            model = warm_up(Path(folder), seed)
            files = halves(Path(folder) / f"selection-{seed}", model, seed)
            for name, rows in files.items():
                one = reinforce(Path(folder) / f"{name}-{seed}", model, rows, seed)
                results[name].append(one)
                print(f"    {name:<9} " + "   ".join(f"{key} {value:.3f}" for key, value in one.items()))
    figures = {}
    for name, ones in results.items():
        for key in ("accuracy_halfway", "accuracy_after", "greedy_after"):
            figures[f"{name}_{key}"] = round(statistics.mean(one[key] for one in ones), 4)
    pairs = list(zip(results["selected"], results["random"], strict=True))
    gains = {
        f"gains_{when}": [round(a[f"accuracy_{when}"] - b[f"accuracy_{when}"], 4) for a, b in pairs]
        for when in ("halfway", "after")
    }
    print(json.dumps({**figures, **gains}))


if __name__ == "__main__":
    main()
