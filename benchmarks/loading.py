"""A million records: memory, and seconds to the first batch, for JSON lines, a JSON array and parquet."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROWS = 1_000_000
STEPS = 50


def write_files(folder: Path) -> list[Path]:
    """The same records as JSON lines, as a JSON array and as parquet, pictures by path."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    from PIL import Image

    Image.new("RGB", (64, 64), (200, 40, 40)).save(folder / "shared.png")
    paths = [folder / name for name in ("rows.jsonl", "rows.json", "rows.parquet")]
    text = "Look at the picture and say what it shows, in one word, as precisely as you can. " * 3
    with paths[0].open("w") as lines, paths[1].open("w") as array:
        array.write("[")
        for row in range(ROWS):
            line = json.dumps({"problem": f"{row}: {text}", "answer": str(row % 97), "images": ["shared.png"]})
            lines.write(line + "\n")
            array.write((", " if row else "") + line)
        array.write("]")
    step = 100_000
    with pq.ParquetWriter(
        paths[2], pa.schema({"problem": pa.string(), "answer": pa.string(), "images": pa.list_(pa.string())})
    ) as writer:
        for start in range(0, ROWS, step):
            rows = [
                {"problem": f"{row}: {text}", "answer": str(row % 97), "images": ["shared.png"]}
                for row in range(start, start + step)
            ]
            writer.write_table(pa.Table.from_pylist(rows, schema=writer.schema), row_group_size=step)
    return paths


class BareFamily:
    """Counts bytes as tokens, so that the loader is measured and no tokenizer."""

    class tokenizer:
        """Has no chat template."""

        chat_template = None

        @staticmethod
        def convert_ids_to_tokens(number: int) -> str:
            """The placeholder's text."""
            return "*"

    placeholder_id = 42

    @staticmethod
    def target_size(size: tuple[int, int]) -> tuple[int, int]:
        """As it is."""
        return size

    @staticmethod
    def encode_prompt(text: str, pictures: Any) -> Any:
        """Bytes, and a span of one for each picture."""
        import torch

        from rlvlm.batch import Span

        ids = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8).long()
        return ids, ids, tuple(Span(number, number, 1) for number in range(len(pictures)))

    @staticmethod
    def process_all(pictures: Any) -> list[dict[str, Any]]:
        """No tensors."""
        return [{} for _ in pictures]


def measure(path: str) -> dict[str, float]:
    """Seconds from opening the file to the first shuffled batch, ms of later ones, and the memory that it took."""
    from rlvlm.data.config import DataConfig
    from rlvlm.data.loader import Loader

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.perf_counter()
    batches = iter(Loader(DataConfig(train=path, prefetch=0), BareFamily()))  # type: ignore[arg-type]
    next(batches)
    first = time.perf_counter() - start
    start = time.perf_counter()
    for _ in range(STEPS):
        next(batches)
    later = (time.perf_counter() - start) / STEPS
    added = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    return {"first_batch_s": first, "later_batch_ms": 1000 * later, "added_mib": added / 1024}


def main() -> None:
    """Each file in a process of its own; prints a table, then one line of JSON."""
    if len(sys.argv) == 2:
        print(json.dumps(measure(sys.argv[1])))
        return
    figures = {}
    with tempfile.TemporaryDirectory() as folder:
        for path in write_files(Path(folder)):
            env = {**os.environ, "RLVLM_CACHE": f"{folder}/cache"}
            done = subprocess.run(
                [sys.executable, "-m", "benchmarks.loading", str(path)],
                env=env,
                capture_output=True,
                text=True,
                check=True,
            )
            one = json.loads(done.stdout)
            kind, size = path.suffix[1:], path.stat().st_size / 2**20
            print(f"  {kind:<8} {ROWS:,} rows, {size:6.0f} MiB   first batch {one['first_batch_s']:5.2f} s", end="")
            print(f"   later {one['later_batch_ms']:6.1f} ms   +{one['added_mib']:.0f} MiB")
            figures |= {f"{kind}_{name}": round(value, 3) for name, value in one.items()}
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
