"""What guards a recorded part against damage, beside the checksums of Parquet's pages: a seal over its schema.

A flipped bit in a column's name, a setting or a row count would read as another recording, not as a broken one. The
seal stands in the schema's metadata and covers all of these. Parts of other writers have none: taken as they are.
"""

from __future__ import annotations

from hashlib import blake2b

import pyarrow as pa

SEAL = b"triage_seal"
_NOT_SEALED = frozenset({SEAL, b"ARROW:schema"})


def sealed(schema: pa.Schema, rows: int) -> pa.Schema:
    return schema.with_metadata({**(schema.metadata or {}), SEAL: _seal(schema, rows)})


def seal_holds(schema: pa.Schema, rows: int) -> bool:
    stored = (schema.metadata or {}).get(SEAL)
    return stored is None or stored == _seal(schema, rows)


def _seal(schema: pa.Schema, rows: int) -> bytes:
    columns = list(schema.names)
    settings = sorted((name, value) for name, value in (schema.metadata or {}).items() if name not in _NOT_SEALED)
    return blake2b(repr((columns, settings, rows)).encode(), digest_size=16).hexdigest().encode()
