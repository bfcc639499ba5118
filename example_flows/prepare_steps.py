"""Data that Ray Data prepares part by part, for the flow `prepare.py` and the DAG `example_dags/prepare.py`."""

from __future__ import annotations

from typing import Any

from example_flows.tables import write_tables

#: The number of files with the raw digits.
PARTS = 6


def make_raw(folder: str) -> list[str]:
    """Write the digits as a scanner would give them, 64 whole numbers from 0 to 16 and a label, in `PARTS` parquet files
    under `folder`, a local path or an s3:// URI; returns where they are."""
    import pyarrow as pa
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    tables = {}
    for part in range(PARTS):
        rows = slice(part, None, PARTS)
        image = pa.FixedSizeListArray.from_arrays(pa.array(images[rows].astype("int8").reshape(-1)), images.shape[1])
        tables[f"raw-{part}"] = pa.table({"image": image, "label": pa.array(labels[rows])})
    return list(write_tables(folder, tables).values())


def prepare(raw: list[str]) -> dict[str, Any]:
    """Scale each file with Ray Data, the last one for the test. If the process is killed, the next one continues with
    the file that was not done; a half-written file is rewritten."""
    import ray.data
    from ray.data import SaveMode

    from plugin_core.loops import step

    done: dict[str, int] = step.load() or {}
    for number, path in enumerate(raw):
        if path in done:
            continue
        kind = "test" if number == len(raw) - 1 else "train"
        scaled = ray.data.read_parquet(path).map_batches(scale).materialize()
        scaled.write_parquet(f"{step.output()}/{kind}/{number}", mode=SaveMode.OVERWRITE)
        done[path] = scaled.count()
        step.save(done)
    return {"train": f"{step.output()}/train", "test": f"{step.output()}/test", "rows": sum(done.values())}


def scale(batch: dict[str, Any]) -> dict[str, Any]:
    import numpy as np

    return {"image": np.stack(batch["image"]).astype(np.float32) / 16, "label": batch["label"].astype(np.int64)}
