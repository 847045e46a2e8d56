"""Grafana's dashboards for a cluster: cluster, router, shard, moves and clients.

`observing` writes them. Panels are tables here, so that a test can compare their metrics with the metrics of
running daemons.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

_WIDTH: Final = 24
_HEIGHT: Final = 8
_PER_ROW: Final = 3

SCHEMA_VERSION: Final = 38
"""The version of the dashboard model in Grafana 10."""


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel.

    Attributes:
        unit: Grafana's name of the unit, for example ``s``, ``bytes`` or ``ops``.
        queries: expressions of Prometheus, each with the legend of its series.
        is_number: show the last value as a number, not the series as lines.
    """

    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    is_number: bool = False


@dataclass(frozen=True, slots=True)
class Dashboard:
    """One dashboard.

    Attributes:
        name: part of its uid and file name.
        variables: variables that the user chooses besides the cluster: name and the metric that has them as labels.
    """

    name: str
    title: str
    panels: tuple[Panel, ...]
    variables: tuple[tuple[str, str], ...] = ()

    def expressions(self) -> Iterator[str]:
        """Yield all expressions in it, including the expressions of variables."""
        for panel in self.panels:
            for expression, _ in panel.queries:
                yield expression
        for _, metric in self.variables:
            yield metric

    def to_document(self) -> dict[str, Any]:
        """Return the dashboard in Grafana's JSON model."""
        return {
            "uid": f"shardwright-{self.name}",
            "title": self.title,
            "tags": ["shardwright"],
            "schemaVersion": SCHEMA_VERSION,
            "timezone": "browser",
            "refresh": "10s",
            "time": {"from": "now-1h", "to": "now"},
            "templating": {"list": [_DATASOURCE, _variable("cluster", _EVERY), *self._variables()]},
            "links": [{"type": "dashboards", "tags": ["shardwright"], "title": "Shardwright", "asDropdown": True}],
            "panels": [_panel(position, panel) for position, panel in enumerate(self.panels)],
        }

    def _variables(self) -> Iterator[dict[str, Any]]:
        for name, metric in self.variables:
            yield _variable(name, f'{metric}{{cluster="$cluster"}}', has_all=True)


_EVERY: Final = "shardwright_configd_is_primary"
_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
_DATASOURCE: Final = {"name": "datasource", "type": "datasource", "query": "prometheus"}


def _variable(name: str, metric: str, *, has_all: bool = False) -> dict[str, Any]:
    return {
        "name": name,
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": f"label_values({metric}, {name})", "refId": name},
        "refresh": 2,
        "sort": 1,
        "includeAll": has_all,
        "multi": has_all,
        **({"current": {"text": "All", "value": "$__all"}} if has_all else {}),
    }


def _panel(position: int, panel: Panel) -> dict[str, Any]:
    width = _WIDTH // _PER_ROW
    return {
        "id": position + 1,
        "title": panel.title,
        "type": "stat" if panel.is_number else "timeseries",
        "datasource": _SOURCE,
        "gridPos": {
            "x": position % _PER_ROW * width,
            "y": position // _PER_ROW * _HEIGHT,
            "w": width,
            "h": _HEIGHT,
        },
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + number), "expr": expression, "legendFormat": legend, "datasource": _SOURCE}
            for number, (expression, legend) in enumerate(panel.queries)
        ],
    }


_C: Final = 'cluster="$cluster"'
_P: Final = f'{_C}, process=~"$process"'
_S: Final = f'{_C}, shard=~"$shard"'
_R: Final = f'{_C}, replica_set=~"$shard"'


def _rate(metric: str, labels: str, by: str = "") -> str:
    """Return a query for the rate of a counter, summed by some labels."""
    return f"sum by ({by}) (rate({metric}{{{labels}}}[1m]))"


def _increase(metric: str, labels: str, by: str) -> str:
    """Return a query for the increase of a counter in five minutes, summed by some labels."""
    return f"sum by ({by}) (increase({metric}{{{labels}}}[5m]))"


def _lines(title: str, unit: str, *queries: tuple[str, str]) -> Panel:
    return Panel(title, unit, queries)


def _number(title: str, unit: str, expression: str, legend: str = "") -> Panel:
    return Panel(title, unit, ((expression, legend),), is_number=True)


def _quantiles(title: str, name: str, labels: str) -> Panel:
    return Panel(
        title,
        "s",
        tuple((f"{name}:{quantile}_5m{{{labels}}}", f"{quantile} {{{{shard}}}}{{{{command}}}}") for quantile in _SHOWN),
    )


_SHOWN: Final = ("p50", "p95", "p99")

CLUSTER: Final = Dashboard(
    "cluster",
    "Shardwright: cluster",
    (
        _number("Processes up", "none", f'sum by (job) (up{{job=~"shardwright-.*", {_C}}})', "{{job}}"),
        _number(
            "Shards without a primary",
            "none",
            f"count(shardwright_router_shard_primary_known{{{_C}}} == 0) or vector(0)",
        ),
        _number("Chunks", "none", f"shardwright_configd_chunks{{{_C}}}", "{{shard}}"),
        _lines("Operations by command", "ops", (f"shardwright:operations:rate1m{{{_C}}}", "{{command}}")),
        _lines("Errors by command", "ops", (f"shardwright:operation_errors:rate1m{{{_C}}}", "{{command}}")),
        _quantiles("Latency by command", "shardwright:operation_duration_seconds", _C),
        _lines("Requests by shard", "ops", (f"shardwright:shard_requests:rate1m{{{_C}}}", "{{shard}}")),
        _quantiles("Latency by shard", "shardwright:shard_request_duration_seconds", _C),
        _lines("Errors by shard", "ops", (f"shardwright:shard_errors:rate1m{{{_C}}}", "{{shard}} {{kind}}")),
        _lines("Data by shard", "bytes", (f"shardwright_configd_shard_data_bytes{{{_C}}}", "{{shard}}")),
        _lines(
            "Scattered share", "percentunit", (f"shardwright:scattered_operations:ratio5m{{{_C}}}", "several shards")
        ),
        _lines(
            "Replication lag",
            "s",
            (f"shardwright_shardd_replication_lag_seconds{{{_C}}}", "{{process}}"),
            (f"shardwright_configd_replication_lag_seconds{{{_C}}}", "{{process}}"),
        ),
    ),
)

ROUTER: Final = Dashboard(
    "router",
    "Shardwright: routers",
    (
        _lines(
            "Operations",
            "ops",
            (
                _rate("shardwright_router_operations_total", _P, "process, worker"),
                "{{process}} {{worker}}",
            ),
        ),
        _lines(
            "Processor time",
            "percentunit",
            (f'rate(process_cpu_seconds_total{{job="shardwright-router", {_P}}}[1m])', "{{process}} {{worker}}"),
        ),
        _lines(
            "Event loop lag, p99",
            "s",
            (f"shardwright:event_loop_lag_seconds:p99_5m{{{_P}}}", "{{process}} {{worker}}"),
        ),
        _lines(
            "Memory",
            "bytes",
            (f'process_resident_memory_bytes{{job="shardwright-router", {_P}}}', "{{process}} {{worker}}"),
        ),
        _lines(
            "Passages",
            "ops",
            (_rate("shardwright_router_passages_total", _P, "outcome"), "{{outcome}}"),
        ),
        _lines(
            "Targeting",
            "ops",
            (_rate("shardwright_router_targeted_operations_total", _P, "target"), "{{target}}"),
        ),
        _lines(
            "Routing refreshes",
            "ops",
            (_rate("shardwright_router_full_refreshes_total", _P), "full"),
            (_rate("shardwright_router_incremental_refreshes_total", _P), "incremental"),
            (_rate("shardwright_router_failed_refreshes_total", _P), "failed"),
            (_rate("shardwright_router_stale_version_retries_total", _P), "operations repeated"),
        ),
        _lines(
            "Time in refreshes", "s", (f"rate(shardwright_router_refresh_seconds_total{{{_P}}}[1m])", "{{process}}")
        ),
        _lines("Routing cache", "none", (f"shardwright_router_routing_cache_entries{{{_P}}}", "{{process}} {{kind}}")),
        _lines(
            "Connections to hosts",
            "none",
            (f"sum by (host, state) (shardwright_router_pool_host_connections{{{_P}}})", "{{host}} {{state}}"),
        ),
    ),
    (("process", "shardwright_router_build_info"),),
)

SHARD: Final = Dashboard(
    "shard",
    "Shardwright: shards",
    (
        _lines("Requests of routers", "ops", (f"shardwright:shard_requests:rate1m{{{_S}}}", "{{shard}}")),
        _quantiles("Latency at routers", "shardwright:shard_request_duration_seconds", _S),
        _lines(
            "Bytes",
            "Bps",
            (
                _rate("shardwright_router_shard_bytes_total", _S, "shard, direction"),
                "{{shard}} {{direction}}",
            ),
        ),
        _lines(
            "Members",
            "none",
            (f"max by (shard, state) (shardwright_router_shard_members{{{_S}}})", "{{shard}} {{state}}"),
        ),
        _lines(
            "Replication lag",
            "s",
            (f"shardwright_shardd_replication_lag_seconds{{{_R}}}", "{{process}}"),
        ),
        _lines(
            "Oplog window",
            "s",
            (f"shardwright_shardd_oplog_window_seconds{{{_R}}}", "{{process}}"),
        ),
        _lines(
            "Documents",
            "ops",
            (
                _rate("shardwright_shardd_mongod_documents_total", _R, "replica_set, kind"),
                "{{replica_set}} {{kind}}",
            ),
        ),
        _lines("Chunks", "none", (f"shardwright_configd_chunks{{{_S}}}", "{{shard}}")),
        _lines("Jumbo chunks", "none", (f"shardwright_configd_jumbo_chunks{{{_S}}}", "{{shard}}")),
        _lines("Data", "bytes", (f"shardwright_configd_shard_data_bytes{{{_S}}}", "{{shard}}")),
        _lines("Orphans", "none", (f"shardwright_shardd_orphan_documents{{{_R}}}", "{{process}}")),
        _lines(
            "Stale versions",
            "ops",
            (
                _rate("shardwright_shardd_stale_errors_total", _R, "replica_set, error"),
                "{{replica_set}} {{error}}",
            ),
        ),
    ),
    (("shard", "shardwright_configd_chunks"),),
)

MOVES: Final = Dashboard(
    "moves",
    "Shardwright: moves",
    (
        _number("Balancer enabled", "none", f"max(shardwright_configd_balancer_enabled{{{_C}}})"),
        _number(
            "Time since the last round",
            "s",
            f"time() - max(shardwright_configd_balancer_round_timestamp_seconds{{{_C}}})",
        ),
        _number("Error of the last round", "none", f"shardwright_configd_balancer_round_error{{{_C}}}", "{{error}}"),
        _lines(
            "Rounds",
            "ops",
            (_rate("shardwright_configd_balancer_rounds_total", _C), "all"),
            (_rate("shardwright_configd_balancer_failed_rounds_total", _C), "failed"),
        ),
        _lines(
            "Moves of the balancer",
            "none",
            (_increase("shardwright_configd_balancer_moves_total", _C, "result"), "{{result}}"),
        ),
        _lines(
            "Moves by donor",
            "none",
            (
                _increase("shardwright_shardd_donor_migrations_total", _C, "replica_set, outcome"),
                "{{replica_set}} {{outcome}}",
            ),
        ),
        _lines(
            "Moves by recipient",
            "none",
            (
                _increase("shardwright_shardd_recipient_migrations_total", _C, "replica_set, outcome"),
                "{{replica_set}} {{outcome}}",
            ),
        ),
        _lines(
            "Bytes cloned",
            "Bps",
            (
                _rate("shardwright_shardd_recipient_bytes_cloned_total", _C, "replica_set"),
                "{{replica_set}}",
            ),
        ),
        _lines(
            "Critical sections",
            "s",
            (f"shardwright_shardd_donor_last_critical_section_seconds{{{_C}}}", "{{process}}"),
        ),
        _lines("Range deletions", "none", (f"shardwright_shardd_range_deletions_pending{{{_C}}}", "{{process}}")),
        _lines("Draining shards", "none", (f"shardwright_configd_shard_draining{{{_C}}}", "{{shard}}")),
        _lines(
            "Resharding, time left", "s", (f"shardwright_configd_resharding_remaining_seconds{{{_C}}}", "{{process}}")
        ),
    ),
)

CLIENTS: Final = Dashboard(
    "clients",
    "Shardwright: clients",
    (
        _lines("Connections", "none", (f"shardwright_router_open_connections{{{_P}}}", "{{process}} {{worker}}")),
        _lines(
            "Accepted and refused",
            "ops",
            (_rate("shardwright_router_connections_accepted_total", _P), "accepted"),
            (_rate("shardwright_router_connections_refused_total", _P), "refused"),
        ),
        _lines(
            "Network",
            "Bps",
            (_rate("shardwright_router_network_bytes_total", _P, "direction"), "{{direction}}"),
        ),
        _lines("Open cursors", "none", (f"shardwright_router_open_cursors{{{_P}}}", "{{process}}")),
        _lines("Open transactions", "none", (f"shardwright_router_open_transactions{{{_P}}}", "{{process}}")),
        _lines("Sessions", "none", (f"shardwright_router_sessions{{{_P}}}", "{{process}}")),
        _lines(
            "Transactions ended",
            "ops",
            (_rate("shardwright_router_transactions_ended_total", _P, "outcome"), "{{outcome}}"),
        ),
        _lines(
            "Faults",
            "ops",
            (_rate("shardwright_router_operation_faults_total", _P, "outcome"), "{{outcome}}"),
        ),
        _lines("Unread replies", "bytes", (f"shardwright_router_unread_reply_bytes{{{_P}}}", "{{process}}")),
        _lines(
            "Statements of writes",
            "ops",
            (_rate("shardwright_router_write_statements_total", _P, "kind"), "{{kind}}"),
        ),
        _lines("Unauthenticated", "none", (f"shardwright_router_unauthenticated_connections{{{_P}}}", "{{process}}")),
    ),
    (("process", "shardwright_router_build_info"),),
)

DASHBOARDS: Final[Sequence[Dashboard]] = (CLUSTER, ROUTER, SHARD, MOVES, CLIENTS)
