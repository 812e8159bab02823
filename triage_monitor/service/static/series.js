// A run's numbers by step as columns, grown at the end, cut and refilled where an update came late or again.

export const INDICATORS = [
  "rho_asym", "rho_asym_low", "rho_asym_high", "rho_excess", "near_zero_fraction",
  "rho_pressure", "pressure_odds_pos", "pressure_odds_neg",
  "mass_a_neg", "mass_a_pos", "mass_c_neg", "mass_c_pos",
  "heavy_segment_fraction", "masked_response_fraction", "top5_tail_share", "tail_concentration", "persistence",
  "abs_delta_mean", "delta_std", "mismatch_energy", "kl_k3", "reward_mean", "grad_norm",
  "q0.001_all", "q0.01_all", "q0.05_all", "q0.25_all", "q0.5_all", "q0.75_all", "q0.95_all", "q0.99_all", "q0.999_all",
  "q0.05_neg", "q0.05_pos", "q0.001_neg", "q0.001_pos",
];
export const SCORE = "warning_score";

export class Columns {
  constructor(names = [...INDICATORS, SCORE]) {
    this.steps = [];
    this.values = new Map(names.map((name) => [name, []]));
  }

  get length() {
    return this.steps.length;
  }

  get lastStep() {
    return this.steps.length ? this.steps[this.steps.length - 1] : -1;
  }

  column(name) {
    return this.values.get(name) ?? [];
  }

  newest(name) {
    const column = this.column(name);
    return column.length ? column[column.length - 1] : null;
  }

  // The place of the first step that is not below `step`.
  placeOf(step) {
    let [low, high] = [0, this.steps.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.steps[middle] < step) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  nearest(step) {
    const place = this.placeOf(step);
    if (place === this.steps.length) return place - 1;
    return place > 0 && step - this.steps[place - 1] < this.steps[place] - step ? place - 1 : place;
  }

  // `answer` is the server's series from `first` on: what stood there before is replaced.
  replaceFrom(first, answer) {
    const steps = answer[0]?.steps ?? [];
    const from = this.placeOf(first);
    this.steps.length = from;
    for (const step of steps) this.steps.push(step);
    for (const [name, column] of this.values) {
      column.length = from;
      const found = answer.find((item) => item.name === name);
      for (let i = 0; i < steps.length; i += 1) column.push(found ? found.values[i] : null);
    }
  }

  // Older history, which comes after the newest was shown.
  putBefore(answer) {
    const steps = (answer[0]?.steps ?? []).filter((step) => this.steps.length === 0 || step < this.steps[0]);
    this.steps = [...steps, ...this.steps];
    for (const [name, column] of this.values) {
      const found = answer.find((item) => item.name === name);
      const older = found ? found.values.slice(0, steps.length) : steps.map(() => null);
      this.values.set(name, [...older, ...column]);
    }
  }

  slice(names, from, to) {
    return [this.steps.slice(from, to), ...names.map((name) => this.column(name).slice(from, to))];
  }
}

// At most two points a bucket of equal width in x, the smallest and the largest in the order in which they stand, for
// each column by itself: no spike is lost, and a chart costs its pixels, not its updates. Few points come back as given.
export function thinned(data, buckets) {
  const [xs, ...columns] = data;
  const count = xs.length;
  if (count <= 2 * buckets) return data;
  const [first, width] = [xs[0], (xs[count - 1] - xs[0]) / buckets];
  const starts = [0];
  for (let i = 1, bucket = 0; i < count; i += 1) {
    const here = Math.min(buckets - 1, Math.floor((xs[i] - first) / width));
    if (here !== bucket) {
      starts.push(i);
      bucket = here;
    }
  }
  starts.push(count);
  const places = [];
  for (let b = 0; b + 1 < starts.length; b += 1) {
    places.push(xs[starts[b]]);
    if (starts[b + 1] - starts[b] > 1) places.push(xs[starts[b + 1] - 1]);
  }
  return [places, ...columns.map((column) => extremes(column, starts))];
}

function extremes(column, starts) {
  const kept = [];
  for (let b = 0; b + 1 < starts.length; b += 1) {
    const [start, end] = [starts[b], starts[b + 1]];
    let [low, high] = [-1, -1];
    for (let i = start; i < end; i += 1) {
      const value = column[i];
      if (value === null || value === undefined) continue;
      if (low < 0 || value < column[low]) low = i;
      if (high < 0 || value > column[high]) high = i;
    }
    if (end - start === 1) kept.push(column[start]);
    else if (low < 0) kept.push(null, null);
    else kept.push(column[Math.min(low, high)], column[Math.max(low, high)]);
  }
  return kept;
}
