"""The sampler's compiled decode step: one token for all rows, against a key-value cache.

Every product, the softmax and the norms are loops of their own, so that nothing but the master weights and the NVFP4
kernels (`trainer/nvfp4_cpu.py`) is shared with the learner's torch path. One thread, no global lock. Arrays: rows B,
heads H, head width E, positions T, width D, vocabulary V, layers L; matrices are stored [in, out], as `pack` lays
them. One entry point only: every other would compile all of it again.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from triage_monitor.summary.jit import REORDER, compiled
from triage_monitor.trainer.nvfp4_cpu import quantize_bits, round_e4m3
from triage_monitor.trainer.scaled_cpu import FP8_SCALE, round_spans

Floats = npt.NDArray[np.float32]
Tokens = npt.NDArray[np.int64]

# How activations are rounded before each block linear, and keys and values before they enter the cache.
EXACT, BFLOAT16, NVFP4_PER_TENSOR, NVFP4_PER_ROW, FP8 = 0, 1, 2, 3, 4
SCALED = 5  # and 6, 7: plus the kind of scale of `trainer/scaled_cpu.py`
NORM_EPS = np.float32(1e-6)


class Rounding(NamedTuple):
    """`kind` and `cache` are kinds as above (activations: not FP8). `block` is 16; the compiler must not know it, or
    it unrolls the inner loops of the quantiser instead of vectorising them. `span`: elements of a row under one scale
    (SCALED), 0 for a whole row."""

    kind: int
    cache: int = EXACT
    block: int = 16
    span: int = 0


class EngineWeights(NamedTuple):
    embedding: Floats  # [V, D]
    position: Floats  # [T, D]
    norm: Floats  # [D]
    head: Floats  # [D, V]
    norm_attention: Floats  # [L, D]
    qkv: Floats  # [L, D, 3D]
    out: Floats  # [L, D, D]
    norm_mlp: Floats  # [L, D]
    up: Floats  # [L, D, F]
    down: Floats  # [L, F, D]


class EngineCache(NamedTuple):
    keys: Floats  # [L, B, H, E, T]
    values: Floats  # [L, B, H, E, T]


@compiled(REORDER)
def step(
    weights: EngineWeights, cache: EngineCache, tokens: Tokens, position: int, rounding: Rounding, logits: Floats
) -> None:
    """Feeds tokens [B] at `position`; their keys and values enter the cache, logits [B, V] are written."""
    batch, width = tokens.size, weights.embedding.shape[1]
    x = np.empty((batch, width), np.float32)
    normed, rounded, mixed = np.empty_like(x), np.empty_like(x), np.empty_like(x)
    qkv, cached = np.empty((batch, 3 * width), np.float32), np.empty((batch, 2 * width), np.float32)
    hidden = np.empty((batch, weights.up.shape[2]), np.float32)
    rounded_hidden = np.empty_like(hidden)
    for row in range(batch):
        for i in range(width):
            x[row, i] = weights.embedding[tokens[row], i] + weights.position[position, i]
    for layer in range(weights.qkv.shape[0]):
        _norm(x, weights.norm_attention[layer], normed)
        _round(normed, rounding, rounded)
        qkv[:] = 0
        _add_product(rounded, weights.qkv[layer], qkv)
        if rounding.cache != EXACT:
            _round_cached(qkv, rounding, cached)
        _attend(qkv, cache.keys[layer], cache.values[layer], position, mixed)
        _round(mixed, rounding, rounded)
        _add_product(rounded, weights.out[layer], x)
        _norm(x, weights.norm_mlp[layer], normed)
        _round(normed, rounding, rounded)
        hidden[:] = 0
        _add_product(rounded, weights.up[layer], hidden)
        _squared_relu(hidden)
        _round(hidden, rounding, rounded_hidden)
        _add_product(rounded_hidden, weights.down[layer], x)
    _norm(x, weights.norm, normed)
    logits[:] = 0
    _add_product(normed, weights.head, logits)


@compiled(REORDER)
def _add_product(x: Floats, matrix: Floats, out: Floats) -> None:
    """out += x @ matrix; rows and the inner size must be multiples of 2 and 4."""
    for row in range(0, x.shape[0], 2):
        x0, x1, out0, out1 = x[row], x[row + 1], out[row], out[row + 1]
        for k in range(0, matrix.shape[0], 4):
            m0, m1, m2, m3 = matrix[k], matrix[k + 1], matrix[k + 2], matrix[k + 3]
            a0, a1, a2, a3 = x0[k], x0[k + 1], x0[k + 2], x0[k + 3]
            b0, b1, b2, b3 = x1[k], x1[k + 1], x1[k + 2], x1[k + 3]
            for j in range(matrix.shape[1]):
                out0[j] += a0 * m0[j] + a1 * m1[j] + a2 * m2[j] + a3 * m3[j]
                out1[j] += b0 * m0[j] + b1 * m1[j] + b2 * m2[j] + b3 * m3[j]


@compiled(REORDER)
def _attend(qkv: Floats, keys: Floats, values: Floats, position: int, out: Floats) -> None:
    """Softmax attention of each row's newest token over positions 0..position, its own key and value stored first."""
    heads, width = keys.shape[1], keys.shape[2]
    total_width, seen = heads * width, position + 1
    scale = np.float32(1.0 / np.sqrt(np.float32(width)))
    scores = np.empty(seen, np.float32)
    for row in range(keys.shape[0]):
        for head in range(heads):
            key, value = keys[row, head], values[row, head]
            scores[:] = 0
            for e in range(width):
                at = head * width + e
                key[e, position] = qkv[row, total_width + at]
                value[e, position] = qkv[row, 2 * total_width + at]
                query, line = qkv[row, at] * scale, key[e]
                for t in range(seen):
                    scores[t] += query * line[t]
            total = _exponentials(scores)
            for e in range(width):
                line, weighted = value[e], np.float32(0.0)
                for t in range(seen):
                    weighted += scores[t] * line[t]
                out[row, head * width + e] = weighted / total


@compiled(REORDER)
def _exponentials(scores: Floats) -> np.float32:
    """scores <- exp(scores - max), in place; their sum. Relative error about 1e-7.

    Range reduction to |f| <= ln 2 / 2 and a series: a loop that the compiler can vectorise, unlike math.exp.
    """
    largest, total = scores.max(), np.float32(0.0)
    powers = np.empty(scores.size, np.int32)
    for t in range(scores.size):
        x = max(scores[t] - largest, np.float32(-87.0))
        n = np.floor(x * np.float32(1.4426950408889634) + np.float32(0.5))
        f = x - n * np.float32(0.693359375) + n * np.float32(2.12194440e-4)
        series = np.float32(1 / 720) + f * np.float32(1 / 5040)
        for c in (np.float32(1 / 120), np.float32(1 / 24), np.float32(1 / 6), np.float32(0.5)):
            series = series * f + c
        scores[t] = series * f * f + f + np.float32(1.0)
        powers[t] = (np.int32(n) + np.int32(127)) << np.int32(23)
    factors = powers.view(np.float32)
    for t in range(scores.size):
        scores[t] *= factors[t]
        total += scores[t]
    return total


@compiled(REORDER)
def _norm(x: Floats, gain: Floats, out: Floats) -> None:
    for row in range(x.shape[0]):
        line, square = x[row], np.float32(0.0)
        for i in range(line.size):
            square += line[i] * line[i]
        scale = np.float32(1.0) / np.sqrt(square / np.float32(line.size) + NORM_EPS)
        for i in range(line.size):
            out[row, i] = line[i] * scale * gain[i]


@compiled(REORDER)
def _squared_relu(x: Floats) -> None:
    for row in range(x.shape[0]):
        line = x[row]
        for i in range(line.size):
            positive = max(line[i], np.float32(0.0))
            line[i] = positive * positive


@compiled()
def _round_cached(qkv: Floats, rounding: Rounding, cached: Floats) -> None:
    """The newest tokens' keys and values, in place: FP8 (E4M3, scale 1) or NVFP4 with one scale a token."""
    width = cached.shape[1] // 2
    cached[:] = qkv[:, width:]
    bits = cached.reshape(-1).view(np.int32)
    if rounding.cache == FP8:
        for row in range(cached.shape[0]):
            for i in range(cached.shape[1]):
                value = cached[row, i]
                qkv[row, width + i] = np.copysign(round_e4m3(abs(value), np.float32(0.0)), value)
        return
    quantize_bits(bits, bits, cached.shape[1], 0, np.float32(0.0), np.float32(0.0), rounding.block)
    qkv[:, width:] = cached


@compiled()
def _round(x: Floats, rounding: Rounding, out: Floats) -> None:
    bits, rounded = x.reshape(-1).view(np.int32), out.reshape(-1).view(np.int32)
    if rounding.kind == EXACT:
        out[:] = x
    elif rounding.kind == BFLOAT16:
        for i in range(bits.size):
            tie = (bits[i] >> np.int32(16)) & np.int32(1)
            rounded[i] = (bits[i] + np.int32(0x7FFF) + tie) & np.int32(-0x10000)
    elif rounding.kind >= SCALED:
        span = rounding.span if rounding.span > 0 else x.shape[1]
        round_spans(x.reshape(-1), out.reshape(-1), x.shape[1], span, rounding.kind - SCALED + FP8_SCALE)
    else:
        sharing = x.shape[1] if rounding.kind == NVFP4_PER_ROW else x.size
        quantize_bits(bits, rounded, sharing, 0, np.float32(0.0), np.float32(0.0), rounding.block)
