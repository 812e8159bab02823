"""What the dashboards are made of: panels, variables, links and annotations, all on data sources chosen by variable.

A panel is a title, a description, a unit and its queries; every panel has all of them (a test looks). Colours are of a
palette that the colour-blind tell apart, and stages are named beside their colour. Only this module and those that use
it import grafana-foundation-sdk.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from grafana_foundation_sdk.builders import dashboard, prometheus, stat, statetimeline, table, timeseries
from grafana_foundation_sdk.builders.common import (
    GraphThresholdsStyleConfig,
    ScaleDistributionConfig,
    VizLegendOptions,
    VizTooltipOptions,
)
from grafana_foundation_sdk.models.common import (
    GraphTresholdsStyleMode,
    LegendDisplayMode,
    LegendPlacement,
    ScaleDistribution,
    SortOrder,
    TooltipDisplayMode,
)
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DashboardLinkType,
    DataSourceRef,
    DataTransformerConfig,
    DynamicConfigValue,
    Threshold,
    ThresholdsMode,
    ValueMap,
    ValueMappingResult,
    VariableRefresh,
    VariableSort,
)
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
# After Okabe and Ito.
BLUE, ORANGE, GREEN, VERMILION, PURPLE, SKY, GREY = (
    *("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9"),
    "#7F7F7F",
)
STAGES = ("warming_up", "healthy", "drift", "pre_terminal", "terminal", "not_observable")
STAGE_COLOURS = (GREY, BLUE, ORANGE, PURPLE, VERMILION, "#000000")
TAGS = ["triage-monitor"]
ADDRESS, RUNBOOK = "http://127.0.0.1:8750", "README.md"


@dataclass(frozen=True, slots=True)
class Query:
    """One PromQL expression; `{{label}}` in the legend is a label's value."""

    expr: str
    legend: str
    instant: bool = False


def stage_code(selector: str) -> str:
    """PromQL: the stage of each run as the number that `stage_mappings` names."""
    terms = [f'triage_stage{{{selector}stage="{stage}"}} * {code}' for code, stage in enumerate(STAGES)]
    return f"max by (run) (sum by (instance, run) ({' or '.join(terms)}))"


def chart(title: str, description: str, unit: str, *queries: Query, **more: Any) -> timeseries.Panel:
    """Lines over time. `levels`: {value: colour} as lines; `log` axis; `bands`: name -> name it is filled to."""
    panel = timeseries.Panel().title(title).description(description).unit(unit).datasource(SOURCE)
    panel.legend(
        VizLegendOptions().display_mode(LegendDisplayMode.LIST).placement(LegendPlacement.BOTTOM).show_legend(True)
    )
    panel.tooltip(VizTooltipOptions().mode(TooltipDisplayMode.MULTI).sort(SortOrder.DESCENDING))
    panel.fill_opacity(0).line_width(1).span(more.get("span", 12)).height(8)
    levels: dict[float, str] = more.get("levels", {})
    if levels:
        panel.thresholds_style(GraphThresholdsStyleConfig().mode(GraphTresholdsStyleMode.DASHED))
        panel.thresholds(_thresholds(levels))
    if more.get("log"):
        panel.scale_distribution(ScaleDistributionConfig().type(ScaleDistribution.LOG).log(10))
    for name, below in more.get("bands", {}).items():
        panel.override_by_name(
            name, [DynamicConfigValue("custom.fillBelowTo", below), DynamicConfigValue("custom.fillOpacity", 15)]
        )
    for number, query in enumerate(queries):
        panel.with_target(_target(query, number))
    return panel


def number(title: str, description: str, unit: str, *queries: Query, **more: Any) -> stat.Panel:
    """Newest values as large numbers; `levels` colours them from each value on."""
    panel = stat.Panel().title(title).description(description).unit(unit).datasource(SOURCE)
    panel.span(more.get("span", 6)).height(more.get("height", 4)).no_value("none")
    panel.thresholds(_thresholds(more.get("levels", {})))
    if more.get("stages"):
        panel.mappings(stage_mappings())
    for index, query in enumerate(queries):
        panel.with_target(_target(query, index))
    return panel


def timeline(title: str, description: str, query: Query) -> statetimeline.Panel:
    """The stage over time, one bar a run."""
    panel = statetimeline.Panel().title(title).description(description).unit("none").datasource(SOURCE)
    panel.mappings(stage_mappings()).span(24).height(6).merge_values(True)
    panel.thresholds(_thresholds({}))
    return panel.with_target(_target(query, 0))


def rows(title: str, description: str, *queries: Query, names: dict[str, str], span: int = 24) -> table.Panel:
    """A table of instant values, joined by their labels; `names` renames columns and leaves the others out."""
    panel = table.Panel().title(title).description(description).unit("short").datasource(SOURCE)
    panel.span(span).height(8)
    panel.with_transformation(DataTransformerConfig("merge", options={}))
    hidden = dict.fromkeys(("Time", "__name__", "instance", "job", "severity", "alertstate"), True)
    hidden = {name: True for name in hidden if name not in names}
    panel.with_transformation(
        DataTransformerConfig("organize", options={"renameByName": names, "excludeByName": hidden})
    )
    for index, query in enumerate(queries):
        panel.with_target(_target(query, index).format(PromQueryFormat.TABLE))
    return panel


def stage_mappings() -> list[Any]:
    shown = enumerate(zip(STAGES, STAGE_COLOURS, strict=True))
    options = {str(code): ValueMappingResult(text=name, color=colour, index=code) for code, (name, colour) in shown}
    return [ValueMap(options=options)]


def board(uid: str, title: str, description: str, *, of_run: bool) -> dashboard.Dashboard:
    """An empty dashboard with its variables, links and annotations."""
    made = dashboard.Dashboard(title).uid(uid).description(description).tags(TAGS).refresh("30s").time("now-6h", "now")
    made.timezone("browser").readonly().tooltip(DashboardCursorSync.CROSSHAIR)
    made.with_variable(dashboard.DatasourceVariable("datasource").label("Prometheus").type("prometheus"))
    if of_run:
        made.with_variable(
            dashboard.QueryVariable("run")
            .label("Run")
            .query("label_values(triage_stage, run)")
            .datasource(SOURCE)
            .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
            .sort(VariableSort.ALPHABETICAL_ASC)
        )
        _annotations(made)
    made.with_variable(dashboard.TextBoxVariable("page").label("Monitor").default_value(ADDRESS))
    made.with_variable(dashboard.TextBoxVariable("runbook").label("Runbook").default_value(RUNBOOK))
    made.link(_link("The monitor's page", "${page}/", "Live page of the sidecar"))
    made.link(_link("Runbook", "${runbook}#runbook", "What each alert means and what to do"))
    others = dashboard.DashboardLink("Other dashboards").type(DashboardLinkType.DASHBOARDS).tags(TAGS)
    made.link(others.as_dropdown(True).include_vars(True).keep_time(True).tooltip("Fleet, run, research"))
    return made


def _annotations(made: dashboard.Dashboard) -> None:
    changed = 'changes(triage_params_version{run="$run"}[$__interval]) > 0'
    code = stage_code('run="$run", ')
    stage = f"changes(({code})[$__interval:]) > 0"
    alerts = 'ALERTS{alertname=~"Triage.*", alertstate="firing", run="$run"}'
    for name, colour, expr in (("Parameters", GREEN, changed), ("Stage", PURPLE, stage), ("Alerts", VERMILION, alerts)):
        made.annotation(
            dashboard.AnnotationQuery().name(name).datasource(SOURCE).enable(True).icon_color(colour).expr(expr)
        )


def _link(title: str, url: str, tooltip: str) -> dashboard.DashboardLink:
    return dashboard.DashboardLink(title).type(DashboardLinkType.LINK).url(url).tooltip(tooltip).target_blank(True)


def _thresholds(levels: dict[float, str]) -> dashboard.ThresholdsConfig:
    steps = [Threshold(value=None, color=BLUE), *(Threshold(value=at, color=to) for at, to in levels.items())]
    return dashboard.ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(steps)


def _target(query: Query, number: int) -> prometheus.Dataquery:
    made = prometheus.Dataquery().expr(query.expr).legend_format(query.legend).ref_id(chr(ord("A") + number))
    made.datasource(SOURCE)
    return made.instant() if query.instant else made.range()
