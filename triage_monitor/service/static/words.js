// What a run's numbers come to, in plain words. Pure: a run's detail in, sentences out.

import { capital, count, plural, reading, share, times, words } from "./format.js";

// A shape beside every colour, so that nothing is said by colour alone.
export const STAGES = {
  healthy: { mark: "●", label: "Healthy", tone: "ok", rank: 3 },
  drift: { mark: "▲", label: "Drift", tone: "watch", rank: 2 },
  pre_terminal: { mark: "◆", label: "Pre-terminal: alarm", tone: "alarm", rank: 1 },
  terminal: { mark: "■", label: "Terminal", tone: "dead", rank: 0 },
  warming_up: { mark: "○", label: "Warming up", tone: "wait", rank: 4 },
  not_observable: { mark: "?", label: "Not observable", tone: "blind", rank: 2.5 },
};
export const UNKNOWN_STAGE = { mark: "·", label: "Unknown stage", tone: "wait", rank: 5 };

export const TERMS = {
  "q0.001_neg": "deep tail, A < 0 tokens (q0.001)",
  "q0.001_pos": "deep tail, A > 0 tokens (q0.001)",
  mismatch_energy: "mismatch energy",
  abs_delta_mean: "mean |gap|",
  masked_response_fraction: "unmasked responses",
  rho_pressure: "pressure ratio",
  trend: "trend over 25 updates",
  reward_mean: "reward below its best",
  grad_norm: "gradient norm above its baseline",
  signature: "direction with crowding",
};

const WAITING = {
  no_data: "No update has been judged yet.",
  too_few_tokens: "The window holds too few tokens to judge.",
  too_few_responses: "The window holds too few responses to judge.",
  too_many_unusable_tokens: "Too many tokens have no usable gap: nothing is judged on the rest.",
  window_holds_blinded_updates: "The window still holds updates whose gaps are no basis for a verdict.",
  learning_baseline: "The run's own normal is being learned.",
  no_healthy_baseline: "No healthy baseline could be learned from these updates; `rebaseline` starts again.",
  undecided: "An indicator is on its way out of the normal range; the next updates decide.",
  cleared: "An operator cleared the terminal stage; counting starts anew.",
};
const TERMINAL = {
  terminal_magnitude: "The bulk of the gaps has moved, not only their tail: this run is collapsing.",
  terminal_reward: "The reward has fallen below half of its best while the mismatch is out of its normal range.",
};
const NORMAL = [0.8, 1.25]; // times its baseline: a mean that looks normal

export function stageOf(name) {
  return STAGES[name] ?? UNKNOWN_STAGE;
}

export function banner(detail) {
  const stage = stageOf(detail.stage);
  const sentences = [direction(detail), excess(detail)].filter(Boolean);
  return { ...stage, headline: headline(detail), sentences, todo: todo(detail) };
}

// For whoever is woken by it: what to do first, and whether what was done already has reached the trainer.
const FIRST = {
  drift: "Read the shares and findings below; nothing has to be done at once.",
  pre_terminal: "Save a checkpoint now. Turn gate and repair on (Override), or fall back to bf16 if they are on already.",
  terminal: "Stop or pause the run; resume from a checkpoint before the alarm, gated and repaired or in bf16; then clear the stage.",
};

export function todo(detail) {
  const cause = (detail.findings ?? []).find((item) => item.cause === detail.why);
  const first = detail.stage === "not_observable" ? (cause?.remedy ? `${capital(cause.remedy)}.` : "") : FIRST[detail.stage] ?? "";
  if (first === "") return "";
  return [first, reached(detail)].filter(Boolean).join(" ");
}

function reached(detail) {
  const pushed = detail.params_version ?? 0;
  if (pushed === 0) return "";
  return detail.params_applied?.version === pushed
    ? `Parameter version ${pushed} is in force in the trainer.`
    : `Parameter version ${pushed} has not reached the trainer: see that it runs and calls monitor.apply.`;
}

function headline(detail) {
  const score = detail.window?.score?.value;
  const found = score === undefined || score === null ? "" : reading(score);
  switch (detail.stage) {
    case "healthy":
      return `The mismatch is at this run's own normal${found ? `: early-warning score ${found}, alarm at 1` : ""}.`;
    case "drift":
      return `The mismatch is growing: early-warning score ${found || "above the drift level"}, alarm at 1.`;
    case "pre_terminal":
      return `This run shows the early signs of a collapse: early-warning score ${found || "at the alarm"}, alarm at 1.`;
    case "terminal":
      return TERMINAL[detail.why] ?? "This run was judged terminal, and stays so until somebody clears it.";
    case "warming_up":
      return warming(detail);
    case "not_observable":
      return blind(detail);
    default:
      return words(detail.why ?? "");
  }
}

function warming(detail) {
  if (detail.why === "too_few_updates") {
    const needed = detail.thresholds?.minimum_updates;
    const have = detail.window?.updates ?? 0;
    return `${plural(have, "update")} so far${needed ? `; judging begins at ${needed}` : ""}.`;
  }
  return WAITING[detail.why] ?? "Not enough is known to judge this run yet.";
}

function blind(detail) {
  if (detail.why === "gaps_exactly_zero") {
    return "Every gap is exactly 0: learner and sampler sent the same array, so no verdict is possible.";
  }
  const cause = (detail.findings ?? []).find((item) => item.cause === detail.why);
  return cause ? `These gaps are no basis for a verdict: ${cause.text}.` : "These gaps are no basis for a verdict.";
}

// 'Negative-advantage updates amplify the gap 1.9 times as much as positive ones; averages still look normal.'
export function direction(detail) {
  const values = detail.window?.indicators ?? {};
  if (detail.stage === "not_observable") return "";
  const parts = [ratio(values, detail.window?.reasons ?? {}), averages(detail, values)].filter(Boolean);
  return parts.length === 0 ? "" : `${capital(parts.join("; "))}.`;
}

function ratio(values, reasons) {
  const rho = values.rho_asym;
  if (rho === null || rho === undefined) {
    return reasons.rho_asym ? `which side amplifies the gap is not defined (${words(reasons.rho_asym)})` : "";
  }
  const [low, high] = [values.rho_asym_low, values.rho_asym_high];
  const known = low !== null && low !== undefined && high !== null && high !== undefined;
  const interval = (a, b) => (known ? ` (95% interval ${times(a)} to ${times(b)})` : "");
  if (known && low <= 1 && high >= 1) {
    return `negative- and positive-advantage updates amplify the gap alike, ratio ${times(rho)}${interval(low, high)}`;
  }
  return rho >= 1
    ? `negative-advantage updates amplify the gap ${times(rho)} times as much as positive ones${interval(low, high)}`
    : `positive-advantage updates amplify the gap ${times(1 / rho)} times as much as negative ones${interval(1 / high, 1 / low)}`;
}

function averages(detail, values) {
  const now = values.abs_delta_mean;
  const normal = detail.baseline?.abs_delta_mean;
  if (now === null || now === undefined || !normal) return "";
  const grown = now / normal;
  if (grown >= NORMAL[0] && grown <= NORMAL[1]) {
    const still = ["drift", "pre_terminal", "terminal"].includes(detail.stage) ? "still " : "";
    return `averages ${still}look normal (mean |gap| ${times(grown)} times its baseline)`;
  }
  return `the mean |gap| is ${times(grown)} times its baseline`;
}

function excess(detail) {
  const values = detail.window?.indicators ?? {};
  const band = detail.thresholds?.excess_band ?? 1.1;
  const { rho_excess: left, rho_asym: rho, rho_asym_low: low, rho_asym_high: high } = values;
  if (!left || !rho || detail.stage === "not_observable") return "";
  if (low !== null && low !== undefined && low <= 1 && high >= 1) return "";
  return left <= band && left >= 1 / band
    ? `Sign odds and response lengths explain that imbalance (rho_excess ${reading(left)}).`
    : `Sign odds and response lengths do not explain that imbalance: rho_excess ${reading(left)} is left.`;
}

// What is wrong with the data itself, each with its number; empty when nothing is.
export function integrity(detail) {
  const counts = detail.integrity ?? {};
  const window = detail.window?.counts ?? {};
  const said = [];
  const say = (n, text) => {
    if (n > 0) said.push(text(n));
  };
  say(counts.partial_updates, (n) => `${plural(n, "update")} closed without all shards (${plural(counts.missing_shards, "shard")} missing)`);
  say(counts.empty_updates, (n) => `${plural(n, "update")} held no usable token`);
  say(counts.late_shards, (n) => `${plural(n, "shard")} came after the update was closed`);
  say(counts.conflicting_shards, (n) => `${plural(n, "shard")} refused: the same place with other content`);
  say(counts.refused_params, (n) => `the trainer refused ${plural(n, "parameter set")}`);
  say(counts.superseded_updates, (n) => `${plural(n, "update")} replaced by a newer attempt`);
  say(counts.corrupt_rows, (n) => `${plural(n, "stored row")} failed the checksum and is left out`);
  const unusable = (window.missing ?? 0) + (window.nan ?? 0) + (window.pos_inf ?? 0) + (window.neg_inf ?? 0);
  say(unusable, (n) => `${plural(n, "token")} of the window without a finite gap (${share(n / window.tokens)})`);
  for (const [reason, n] of Object.entries(counts.client_dropped ?? {})) {
    say(n, () => `the trainer dropped ${count(n)} (${words(reason)})`);
  }
  return said;
}
