"""Tables as parquet files, on a local path or an object store."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def write_tables(folder: str, tables: Mapping[str, Any]) -> dict[str, str]:
    """Write each arrow table as `NAME.parquet` under `folder`, a local path or an s3:// URI; returns where they are.

    An existing file is left alone, so a retry costs nothing.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    from plugin_core.storage.location import Location

    written = {}
    for name, table in tables.items():
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink)
        file = Location.of(folder).child(f"{name}.parquet")
        file.create(sink.getvalue().to_pybytes())
        written[name] = file.uri
    return written
