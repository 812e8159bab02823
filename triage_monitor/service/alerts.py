"""The alerts by name: what each means and what to do about it. One table for all who say it.

`deploy/prometheus/rules.yml` carries these texts as annotations and the README's runbook is made from them (tests hold
both to it); `alertmanager` pushes the same alerts to those who run no rules. Severity is `info` (look when you pass
by), `warning` (look today) or `critical` (look now).

Leaves out when an alert fires: that is PromQL in the rules, and `conditions` for the direct push.
"""

from __future__ import annotations

from dataclasses import dataclass

INFO, WARNING, CRITICAL = "info", "warning", "critical"
RUNBOOK = "README.md"


@dataclass(frozen=True, slots=True)
class Alert:
    """`summary` follows the run's name and a colon, or stands alone where the alert is about the monitor."""

    name: str
    severity: str
    summary: str
    means: str
    remedy: str

    @property
    def runbook(self) -> str:
        return self.runbook_on(RUNBOOK)

    def runbook_on(self, page: str) -> str:
        return f"{page}#{self.name.lower()}"


ALERTS: tuple[Alert, ...] = (
    Alert(
        "TriageDirectionalImbalance",
        WARNING,
        "updates amplify the gap on one side of the advantage more than on the other",
        "rho_asym over the window is beyond 1.25 with its interval clear of 1, for 5 updates in a row, and"
        " rho_excess leaves direction in it; it ends below 1.15 for 10 updates.",
        "Read the run's findings first: an offset or a tail that was there from the start needs no action. If"
        " mismatch energy or the deep tail rise too, turn gate and repair on, or let the adaptive policy do so.",
    ),
    Alert(
        "TriageDirectionalImbalanceSevere",
        CRITICAL,
        "a directional imbalance has lasted 25 updates and its whole interval is beyond 1.25",
        "The imbalance has lasted a whole window, and even the near end of its 95% interval is beyond 1.25; it ends"
        " when that end is back within 1.15.",
        "Gate and repair at once; with them on already, fall back to bf16 or pause, and compare the last checkpoints.",
    ),
    Alert(
        "TriageSegmentCrowding",
        WARNING,
        "the amplifying tail grows and crowds into few segments that averages hide",
        "top5_tail_share times persistence is at 1.5 times its baseline while the deep tail is at 1.25 times its"
        " own, for 5 updates. Without a growing tail crowding says nothing, so it is silent then.",
        "Look at the worst responses (`triage-monitor analyze` on the recording): one prompt, one engine, one"
        " length? If they are ordinary answers, gate and repair.",
    ),
    Alert(
        "TriageRunDrifting",
        INFO,
        "the mismatch has left its baseline (stage drift)",
        "The early-warning score is above 0.5 for 5 updates.",
        "Read `why` in GET /v1/runs/RUN: the shares say what the score is made of. No action by itself.",
    ),
    Alert(
        "TriageRunPreTerminal",
        WARNING,
        "leading indicators are far out of their baseline (stage pre_terminal)",
        "The early-warning score is above 1 for 5 updates: in the benchmark a collapse followed in tens of updates.",
        "Gate and repair, or truncate the importance weights; save a checkpoint now; if 25 more updates bring no"
        " turn, fall back to bf16 on both sides.",
    ),
    Alert(
        "TriageRunTerminal",
        CRITICAL,
        "the run has collapsed (stage terminal)",
        "Reward stands at half its best while the mismatch is out, or the gap's bulk is at a multiple of its baseline.",
        "Stop or pause the run, resume from a checkpoint before the first pre_terminal update with another precision"
        " or with gate and repair on, and clear the latched stage: POST /v1/runs/RUN/actions with kind `clear`.",
    ),
    Alert(
        "TriageTerminalMagnitude",
        CRITICAL,
        "the mean absolute gap is at 3 times its baseline",
        "Not the tail but the bulk of the tokens differs, for 5 updates; it ends below 2.4 times.",
        "Treat it as a collapse even if the reward still stands: fall back to bf16 or pause, then look for a broken"
        " weight sync or engine in the findings.",
    ),
    Alert(
        "TriageRewardFalling",
        WARNING,
        "the reward falls while the two paths agree",
        "Reward is 25% below its best for 5 updates and the mismatch is at its baseline.",
        "Look at what training changed (a gate, a cap, a schedule, the data), not at the numerics.",
    ),
    Alert(
        "TriageUnusableTokens",
        WARNING,
        "tokens come without a finite gap",
        "The newest update holds non-finite gaps, or more than 1% missing ones.",
        "Find the rows (`triage-monitor analyze` names them) and the engine they came from. Do not fill them with 0.",
    ),
    Alert(
        "TriageGapsUnusable",
        CRITICAL,
        "the gaps are no basis for a verdict, so nothing is judged",
        "A cause is named that blinds (label `cause`): shifted tokens, fillers, other temperatures, a broken engine.",
        "Do what the finding says in GET /v1/runs/RUN; the verdict comes back by itself once the columns fit.",
    ),
    Alert(
        "TriageNotObservable",
        WARNING,
        "nothing is being measured (stage not_observable)",
        "Learner and sampler log-probs are one array, or the window is no basis for a verdict.",
        "Recompute the learner's log-probs in the trainer; look for an option that takes the sampler's as the old"
        " policy's.",
    ),
    Alert(
        "TriageCauseNamed",
        WARNING,
        "a fault is named in the newest window",
        "The label `cause` says which; the README's table of causes says how it is told from its neighbours.",
        "Do what the table says for this cause before acting on the gap.",
    ),
    Alert(
        "TriageOneSided",
        WARNING,
        "all amplifying mass is on one side, so rho_asym has no value",
        "asym_share is 0 or 1 for 5 updates.",
        "Look for a constant offset of the gap first (renormalised log-probs, a temperature), then for a filter that"
        " removes one sign of the advantage.",
    ),
    Alert(
        "TriageDirectionUndefined",
        INFO,
        "rho_asym has had no value for 25 updates",
        "No verdict on direction can be given; comparisons with an absent value never fire, hence this alert.",
        "Read the reason in GET /v1/runs/RUN under `window.reasons`; usually advantages are all 0 or all of one sign.",
    ),
    Alert(
        "TriageParametersRefused",
        WARNING,
        "the trainer refuses the newest parameters",
        "The trainer's own `limits` exclude them, or they are one change too many; it goes on with the older set.",
        "Read the refusal in GET /v1/runs/RUN/params/history and in the trainer's log; widen `limits` or set other"
        " parameters.",
    ),
    Alert(
        "TriageTrainerFenced",
        WARNING,
        "the trainer obeys another monitor",
        "It has met a monitor of a higher epoch, or another copy of this one, and refuses what comes from here.",
        "Find out which of the two shall command it and stop the other; start the right one with `serve --take-over`.",
    ),
    Alert(
        "TriageParametersUnacknowledged",
        WARNING,
        "the trainer has not taken the newest parameters for 5 updates",
        "Updates arrive but no acknowledgement: the trainer does not call `apply`, or cannot reach the monitor's"
        " answers.",
        "Check that rank 0 calls `monitor.apply(step)` at every update; see `monitor.stats` for its last error.",
    ),
    Alert(
        "TriageTrainerStalled",
        WARNING,
        "no update for 5 times the run's own interval",
        "The newest update is older than five median intervals (at least a minute; half an hour for a run too young"
        " to have a pace).",
        "See whether the trainer still steps. If the run is over, retire it: POST /v1/runs/RUN/actions, kind `retire`.",
    ),
    Alert(
        "TriageUpdatesPartial",
        WARNING,
        "updates are closed without all their shards",
        "Not every rank's shard came within the grace period.",
        "Check that every rank builds a Monitor with the right `shards` and `shard`; raise ingest.grace_seconds for"
        " slow ones.",
    ),
    Alert(
        "TriageUpdateUnclosable",
        WARNING,
        "an update cannot be judged and was set aside",
        "Closing it failed five times by its own fault; the run's other updates go on, its window is without this one,"
        " and its shards stay stored.",
        "See `unclosable_updates` in GET /v1/runs/RUN for the step and the reason. The next start of the monitor tries"
        " it again; report the reason as a fault of the monitor unless the disk is to blame.",
    ),
    Alert(
        "TriageTrainerDropsUpdates",
        INFO,
        "the trainer's client drops updates",
        "Its bounded queue overflowed or the monitor was away; training itself is not held up.",
        "Look at the reasons in GET /v1/runs/RUN under `integrity.client_dropped`; send summaries (`mode='summary'`)"
        " if the network is the limit.",
    ),
    Alert(
        "TriageIngestRejected",
        WARNING,
        "the monitor refuses shards",
        "In the last 15 minutes more than 1% of what came was refused; the label `reason` of"
        " triage_ingest_rejected_total says why.",
        "4xx reasons are the sender's: read the problem document in the trainer's log. `busy` reasons are load:"
        " raise ingest.max_inflight_bytes or send summaries.",
    ),
    Alert(
        "TriageStoreFailing",
        CRITICAL,
        "the monitor's store refuses writes or holds damaged rows",
        "The last write failed, or stored rows failed their checksum within the last hour. Nothing is acknowledged"
        " that is not durable, so trainers queue.",
        "Check disk space and the disk itself; /readyz has the error. Damaged rows are left out, never served.",
    ),
    Alert(
        "TriageStoreLostWrites",
        CRITICAL,
        "the monitor lost acknowledged writes to damaged files",
        "Acknowledged writes are gone: damage to the store's files took more than could be read back.",
        "See `lost_writes` and `set_aside` in /readyz and run `triage-monitor doctor`; the damaged files are kept under"
        " data_dir/damaged. Check the disk. Lost updates can be sent again (`triage-monitor replay`) where the run was"
        " recorded; verdicts go on from what is left.",
    ),
    Alert(
        "TriageStoreDamaged",
        WARNING,
        "the monitor's files were damaged and have been mended",
        "The store's files were found damaged, set aside, and made anew from every row that verifies.",
        "Nothing acknowledged is gone unless TriageStoreLostWrites fires too. Check the disk and its log before it"
        " happens again; `triage-monitor audit verify` shows whether the trail of control changes is whole.",
    ),
    Alert(
        "TriageMonitorAbsent",
        CRITICAL,
        "the monitor does not answer scrapes",
        "For 2 minutes no scrape succeeded; runs are not watched, trainers go on with their last parameters until"
        " their lease ends.",
        "Start `triage-monitor serve` again on the same data directory: it continues where it stopped. Check the"
        " target's address in Prometheus.",
    ),
)
BY_NAME: dict[str, Alert] = {alert.name: alert for alert in ALERTS}
