// Which charts there are, what each draws and how to read it. Colours are names of CSS variables; every line of a chart
// also has its own dash pattern.

const SOLID = [];
const DASH = [7, 4];
const DOT = [2, 3];
const MIXED = [9, 3, 2, 3];

const line = (name, label, colour, dash = SOLID, width = 1.75) => ({ name, label, colour, dash, width });
const edge = (name, colour) => ({ name, label: null, colour, dash: SOLID, width: 0 });

export const PANELS = [
  {
    id: "score", title: "Early-warning score", unit: "alarm at 1", always: "window", floor: [0, 1.15],
    help: "How far the leading indicators stand above this run's own normal.",
    lines: [line("warning_score", "score", "--blue")],
    levels: (t) => [
      { at: t.score?.pre_terminal ?? 1, label: "alarm", colour: "--vermillion" },
      { at: t.score?.drift ?? 0.5, label: "drift", colour: "--orange" },
    ],
  },
  {
    id: "rho", title: "Directional imbalance", unit: "ratio", scale: "log", floor: [0.8, 1.25],
    help: "Amplifying mass at A < 0 over that at A > 0, with its 95% interval; excess is what lengths and sign odds leave.",
    lines: [
      edge("rho_asym_high", "--blue"), edge("rho_asym_low", "--blue"),
      line("rho_asym", "rho_asym", "--blue"), line("rho_excess", "rho_excess", "--vermillion", DASH),
    ],
    bands: [{ between: ["rho_asym_high", "rho_asym_low"], colour: "--blue", opacity: "33", label: "95% interval" }],
    levels: (t) => [
      { at: 1, label: "balanced", colour: "--soft" },
      { at: t.rho_asym ?? 1.25, label: "notice", colour: "--orange" },
    ],
  },
  {
    id: "fan", title: "Quantiles of the gap", unit: "nats", scale: "asinh",
    help: "All tokens, from q0.001 to q0.999. Logarithmic away from 0.",
    lines: [
      edge("q0.999_all", "--blue"), edge("q0.001_all", "--blue"), edge("q0.99_all", "--blue"), edge("q0.01_all", "--blue"),
      edge("q0.95_all", "--blue"), edge("q0.05_all", "--blue"), edge("q0.75_all", "--blue"), edge("q0.25_all", "--blue"),
      line("q0.5_all", "median", "--blue"),
    ],
    bands: [
      { between: ["q0.999_all", "q0.001_all"], colour: "--blue", opacity: "1f", label: "0.1 to 99.9%" },
      { between: ["q0.99_all", "q0.01_all"], colour: "--blue", opacity: "2e", label: "1 to 99%" },
      { between: ["q0.95_all", "q0.05_all"], colour: "--blue", opacity: "40", label: "5 to 95%" },
      { between: ["q0.75_all", "q0.25_all"], colour: "--blue", opacity: "66", label: "25 to 75%" },
    ],
  },
  {
    id: "sides", title: "Negative tail by side", unit: "nats", scale: "asinh",
    help: "The deep tail of either advantage side moves first; q0.05 is the bulk and moves last.",
    lines: [
      line("q0.05_neg", "q0.05, A < 0", "--blue"), line("q0.05_pos", "q0.05, A > 0", "--orange", DASH),
      line("q0.001_neg", "q0.001, A < 0", "--vermillion", MIXED), line("q0.001_pos", "q0.001, A > 0", "--purple", DOT),
    ],
  },
  {
    id: "pressure", title: "Pressure of the update", unit: "ratio", scale: "log", floor: [0.5, 2],
    help: "The imbalance weighted by |gap|; and, on either side alone, negative over positive gaps.",
    lines: [
      line("rho_pressure", "rho_pressure", "--blue"), line("pressure_odds_pos", "odds, A > 0", "--orange", DASH),
      line("pressure_odds_neg", "odds, A < 0", "--vermillion", MIXED),
    ],
    levels: () => [{ at: 1, label: "balanced", colour: "--soft" }],
  },
  {
    id: "masses", title: "Where the advantage mass is", unit: "share", scale: "share0",
    help: "Amplifying tokens widen the gap, contracting ones close it.",
    lines: [
      line("mass_a_neg", "amplifying, A < 0", "--vermillion"), line("mass_a_pos", "amplifying, A > 0", "--orange", DASH),
      line("mass_c_neg", "contracting, A < 0", "--green", MIXED), line("mass_c_pos", "contracting, A > 0", "--blue", DOT),
    ],
  },
  {
    id: "near", title: "What averages see", unit: "share", scale: "share",
    help: "Tokens with |gap| below the near-zero bound, and responses with a heavy segment whose mean still looks small.",
    lines: [
      line("near_zero_fraction", "near-zero tokens", "--blue"),
      line("masked_response_fraction", "masked responses", "--vermillion", DASH),
    ],
  },
  {
    id: "heavy", title: "Tail-heavy segments", unit: "share", scale: "share0",
    help: "Heavy segments among eligible ones, and the share of all tail tokens that the top 5% of segments hold.",
    lines: [
      line("heavy_segment_fraction", "heavy segments", "--blue"), line("top5_tail_share", "held by the top 5%", "--orange", DASH),
    ],
  },
  {
    id: "crowding", title: "Crowding of the tail", unit: "ratio, 1 is chance", floor: [0.9, 1.5],
    help: "Persistence: how much likelier a segment is heavy after a heavy one. Concentration: the top 5% against uniform.",
    lines: [
      line("persistence", "persistence", "--blue"), line("tail_concentration", "concentration", "--orange", DASH),
    ],
    levels: () => [{ at: 1, label: "chance", colour: "--soft" }],
  },
  {
    id: "magnitude", title: "Magnitude", unit: "nats; energy nats²", scale: "log",
    help: "The averages that other tools watch.",
    lines: [
      line("abs_delta_mean", "mean |gap|", "--blue"), line("delta_std", "std of gap", "--orange", DASH),
      line("mismatch_energy", "energy", "--vermillion", MIXED), line("kl_k3", "KL (k3)", "--green", DOT),
    ],
  },
  {
    id: "reward", title: "Reward", unit: "mean", help: "As the trainer sends it.",
    lines: [line("reward_mean", "reward", "--green")], unsent: "The trainer sends no rewards: pass rewards= to submit.",
  },
  {
    id: "norm", title: "Gradient norm", unit: "before clipping", scale: "log", help: "It leads every other signal we tested.",
    lines: [line("grad_norm", "gradient norm", "--purple")],
    unsent: "The trainer sends no gradient norm: pass grad_norm= to submit. It leads every other signal we tested.",
  },
];

export function namesOf(panel) {
  return panel.lines.map((item) => item.name);
}
