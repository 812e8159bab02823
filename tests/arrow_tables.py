"""Small Arrow tables and streams, built by pyarrow alone."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

FLOATS = pa.list_(pa.float32())


def table(gap: list[list[float | None]], advantage: list[float], **columns: Any) -> pa.Table:
    return pa.table({"gap": pa.array(gap, FLOATS), "advantage": pa.array(advantage, pa.float64()), **columns})


def stream(*batches: pa.RecordBatch, metadata: dict[str, str] | None = None, end: bool = True, **options: Any) -> bytes:
    """What any Arrow writer sends; without `end` it stops after the last batch."""
    sink = pa.BufferOutputStream()
    schema = batches[0].schema.with_metadata(metadata)
    writer = pa.ipc.new_stream(sink, schema, options=pa.ipc.IpcWriteOptions(**options))
    for batch in batches:
        writer.write_batch(batch.replace_schema_metadata(metadata))
    writer.close()
    body = sink.getvalue().to_pybytes()
    return body if end else body[:-8]
