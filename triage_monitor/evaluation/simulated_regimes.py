"""The four regimes of a simulated run, one set a model: SYNTHETIC, made to show the paper's published windows.

Published, and hit by these constants under the default SummarySpec (tau_ana 0.05, phi 0.125):

    rho_asym          healthy, drift, pre-terminal      heavy frequency   healthy, pre-terminal; about half at terminal
    persistence       healthy, pre-terminal             top5_tail_share   pre-terminal
    masked_response_fraction  pre-terminal, terminal    q0.05  terminal   near_zero_fraction  a bound before terminal

Two digests of the paper read its 4.8-4.9% -> 2.8-3.6% differently, as heavy segments and as amplifying-tail tokens;
both are put there, which is possible with phi near 0.125 only. With tau_ana at 0.05 the near-zero bound then leaves at
most 3.2% of tokens in a contracting tail on 30B (0.919 - 0.0485), and 12% on 4B: the values lie just inside.

Everything else is ours: lengths, solve rates, drift's place between its neighbours and, what early warning looks at
most, the deep tail before terminal (`far_share`, `far_nats`, `visible_nats`; the masked share of healthy and drift). It
grows about as on the corpus's run fast-s0 at half and three quarters of its way to collapse, the one that collapsed by
then without a ramp or reuse of batches: q0.001 by 2.1 and 2.8, mismatch_energy by 2.7 and 4.7, unmasked responses by
more. `calm_rate`, `heavy_excess` and the terminal `visible_nats` have no closed form: `simulated_fit` finds them.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from triage_monitor.errors import ConfigError

STAGES = ("healthy", "drift", "pre_terminal", "terminal")
MODELS = ("4B", "30B")


@dataclass(frozen=True, slots=True)
class Regime:
    """All positive, so that a point between two regimes is the geometric mean field by field. Rates are a token's."""

    rho_asym: float
    mass_ratio: float  # sum of abs(A) over A < 0, by the same over A > 0: lengths
    heavy_share: float  # of eligible segments
    persistence: float
    calm_rate: float  # amplifying-tail tokens in a segment that is not heavy, before it is kept below phi
    heavy_excess: float  # of a heavy segment's tokens beyond phi, the share in the amplifying tail as well
    contracting_rate: float  # tail tokens with the other sign, in a segment that is not heavy
    contracting_heavy: float
    tilt: float  # tail shares of responses with A < 0, by those with A > 0
    masked_share: float  # of the responses with a heavy segment
    visible_nats: float  # abs(mean gap) of the others
    tail_nats: float  # mean size of a tail gap beyond the threshold
    far_share: float  # of the tail gaps, those of mean size far_nats
    far_nats: float
    solve_rate: float

    def towards(self, other: Regime, way: float) -> Regime:
        """The point at `way` in [0, 1] between both."""
        pairs = {item.name: (getattr(self, item.name), getattr(other, item.name)) for item in fields(self)}
        return Regime(**{name: a ** (1.0 - way) * b**way for name, (a, b) in pairs.items()})

    def tail_grown(self, healthy: Regime, power: float) -> Regime:
        """With the deep tail's growth since `healthy` to a power."""
        names = ("far_share", "far_nats", "visible_nats")
        start = {name: getattr(healthy, name) for name in names}
        return replace(self, **{name: start[name] * (getattr(self, name) / start[name]) ** power for name in names})

    def jittered(self, rho: float, depth: float, amount: float = 1.0) -> Regime:
        """Direction, depth of the tail and amount of amplifying tail times a factor each."""
        return replace(
            self,
            rho_asym=self.rho_asym * rho,
            far_nats=self.far_nats * depth,
            visible_nats=self.visible_nats * depth,
            heavy_share=self.heavy_share * amount,
            calm_rate=self.calm_rate * amount,
        )


# Columns: healthy, drift, pre-terminal, terminal.
_4B: dict[str, tuple[float, ...]] = {
    "rho_asym": (1.02, 1.02, 2.32, 2.9),
    "mass_ratio": (1.01, 1.03, 1.15, 1.25),
    "heavy_share": (0.0485, 0.04, 0.032, 0.5),
    "persistence": (2.6, 3.2, 3.9, 1.25),
    "calm_rate": (0.0421, 0.0337, 0.0265, 0.05),
    "heavy_excess": (0.06, 0.08, 0.089, 0.25),
    "contracting_rate": (0.105, 0.111, 0.116, 0.09),
    "contracting_heavy": (0.1, 0.11, 0.12, 0.3),
    "tilt": (1.02, 1.2, 1.8, 1.1),
    "masked_share": (0.99, 0.9833, 0.9722, 0.0261),
    "visible_nats": (0.1, 0.11, 0.12, 6.47),
    "tail_nats": (0.05, 0.05, 0.05, 0.05),
    "far_share": (0.025, 0.034, 0.04, 0.025),
    "far_nats": (0.8, 1.15, 1.45, 0.8),
    "solve_rate": (0.45, 0.52, 0.56, 0.15),
}
_30B: dict[str, tuple[float, ...]] = {
    "rho_asym": (1.34, 1.34, 1.85, 2.3),
    "mass_ratio": (1.08, 1.1, 1.12, 1.25),
    "heavy_share": (0.0485, 0.04, 0.032, 0.5),
    "persistence": (2.6, 3.2, 3.9, 1.25),
    "calm_rate": (0.0421, 0.0336, 0.0262, 0.05),
    "heavy_excess": (0.06, 0.08, 0.098, 0.25),
    "contracting_rate": (0.024, 0.03, 0.038, 0.05),
    "contracting_heavy": (0.1, 0.11, 0.12, 0.3),
    "tilt": (1.1, 1.2, 1.6, 1.1),
    "masked_share": (0.93, 0.882, 0.7994, 0.0036),
    "visible_nats": (0.1, 0.11, 0.12, 1.65),
    "tail_nats": (0.05, 0.05, 0.05, 0.05),
    "far_share": (0.025, 0.034, 0.04, 0.025),
    "far_nats": (0.8, 1.15, 1.45, 0.8),
    "solve_rate": (0.5, 0.56, 0.6, 0.15),
}
_REGIMES = {
    model: tuple(Regime(**{name: row[place] for name, row in table.items()}) for place in range(len(STAGES)))
    for model, table in zip(MODELS, (_4B, _30B), strict=True)
}


def regimes_of(model: str) -> tuple[Regime, ...]:
    """The four regimes in the order of STAGES. Raises ConfigError for a model the paper has no windows of."""
    if model not in _REGIMES:
        raise ConfigError(f"model is '{model}'; published windows exist of {' and '.join(MODELS)}")
    return _REGIMES[model]
