"""Traces from a client through router and shard daemon to the mongod, as a collector receives them."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen
from uuid import uuid4

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from pymongo.collection import Collection
from pymongo.errors import OperationFailure

from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import UNKNOWN_FIELD
from tests.access_control.users import PASSWORD, identified
from tests.integration.raw_client import raw_client
from tests.integration.sharded import shard_by_range
from tests.local_cluster import RunningCluster, running_cluster
from tests.otlp_collector import CollectedSpan, Collector, serving

CLIENT_SPAN = "00f067aa0ba902b7"
ROUTER, SHARDD = "shardwright-router", "shardwright-shardd"


@pytest.fixture(scope="module")
def collector() -> Collector:
    return Collector()


@pytest.fixture(scope="module")
def serving_collector(collector: Collector) -> Iterator[ExitStack]:
    """Close it to take the collector away."""
    with ExitStack() as stack:
        yield stack


@pytest.fixture(scope="module")
def own(
    tmp_path_factory: pytest.TempPathFactory, collector: Collector, serving_collector: ExitStack
) -> Iterator[RunningCluster]:
    url = serving_collector.enter_context(serving(collector))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SHARDWRIGHT_OTLP_ENDPOINT", url)
        patch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
        directory = tmp_path_factory.mktemp("traced")
        with running_cluster(directory, "--members", "1", "--shards", "2", "--routers", "1") as running:
            yield running


@pytest.fixture(scope="module")
def numbers(own: RunningCluster) -> Iterator[Collection[dict[str, Any]]]:
    with own.client() as client:
        client.admin.command("enableSharding", "traced", primaryShard=own.document["shards"][0]["_id"])
        collection = shard_by_range(client["traced"])
        collection.insert_many([{"_id": key, "key": key} for key in (-5, 5)])
        yield collection


def traceparent(trace_id: str, flags: str = "01") -> str:
    return f"00-{trace_id}-{CLIENT_SPAN}-{flags}"


def new_trace() -> str:
    return uuid4().hex


def only(spans: list[CollectedSpan], service: str, *, is_request: bool) -> CollectedSpan:
    (found,) = [each for each in spans if each.service == service and each.is_request is is_request]
    return found


def test_the_spans_of_a_find_are_a_chain(numbers: Collection[dict[str, Any]], collector: Collector) -> None:
    trace = new_trace()
    assert numbers.find_one({"key": 5}, comment=traceparent(trace)) is not None
    spans = collector.of_trace(trace, 4)
    of_router = only(spans, ROUTER, is_request=False)
    to_shard = only(spans, ROUTER, is_request=True)
    of_shard = only(spans, SHARDD, is_request=False)
    to_mongod = only(spans, SHARDD, is_request=True)
    parents = [each.parent_id for each in (of_router, to_shard, of_shard, to_mongod)]
    assert parents == [CLIENT_SPAN, of_router.span_id, to_shard.span_id, of_shard.span_id]
    assert of_router.name == f"find {numbers.full_name}"
    shard = to_shard.attributes["shardwright.shard"]
    assert of_router.attributes == {
        "db.system.name": "mongodb",
        "db.operation.name": "find",
        "db.namespace": "traced",
        "db.collection.name": numbers.name,
        "shardwright.shards": [shard],
    }
    assert to_shard.attributes["server.port"] > 0


def test_each_shard_has_a_span(numbers: Collection[dict[str, Any]], collector: Collector) -> None:
    trace = new_trace()
    assert len(list(numbers.find({}, comment={"traceparent": traceparent(trace)}))) == 2
    spans = collector.of_trace(trace, 7)
    of_router = only(spans, ROUTER, is_request=False)
    to_shards = [each for each in spans if each.service == ROUTER and each.is_request]
    of_shards = [each for each in spans if each.service == SHARDD and not each.is_request]
    assert len(of_router.attributes["shardwright.shards"]) == 2
    assert {each.parent_id for each in to_shards} == {of_router.span_id}
    assert {each.parent_id for each in of_shards} == {each.span_id for each in to_shards}


@pytest.mark.parametrize("command", ["find", "update", "delete", "count"])
def test_the_comment_of_a_query_names_the_trace(
    numbers: Collection[dict[str, Any]], collector: Collector, command: str
) -> None:
    trace = new_trace()
    query = {"key": 77, "$comment": traceparent(trace)}
    for _ in range(4):  # no passage may take one of them
        match command:
            case "find":
                numbers.find_one(query)
            case "update":
                numbers.update_one(query, {"$set": {"a": 1}})
            case "delete":
                numbers.delete_one(query)
            case _:
                numbers.database.command("count", numbers.name, query=query)

    def of_shard(spans: list[CollectedSpan]) -> list[CollectedSpan]:
        return [each for each in spans if each.trace_id == trace and each.service == SHARDD and not each.is_request]

    spans = of_shard(collector.wait(lambda spans: len(of_shard(spans)) >= 4))
    assert [each.attributes["db.operation.name"] for each in spans] == [command] * 4


def test_statements_of_a_transaction_are_traced(own: RunningCluster, collector: Collector) -> None:
    trace = new_trace()
    with own.client() as client, client.start_session() as session:
        collection = client["traced"].create_collection("transacted")
        session.start_transaction()
        collection.insert_one({"a": 1}, session=session, comment=traceparent(trace))
        assert collection.find_one({}, session=session, comment=traceparent(trace)) is not None
        session.commit_transaction()
    spans = collector.of_trace(trace, 8)
    operations = {each.attributes["db.operation.name"] for each in spans if each.service == SHARDD}
    assert operations >= {"insert", "find"}


def test_an_error_is_in_the_span(numbers: Collection[dict[str, Any]], collector: Collector) -> None:
    trace = new_trace()
    with pytest.raises(OperationFailure):
        numbers.find_one({"key": 5, "a": {"$nonsense": 1}}, comment=traceparent(trace))
    of_router = next(each for each in collector.of_trace(trace, 4) if each.service == ROUTER and not each.is_request)
    assert of_router.has_failed
    assert of_router.attributes["error.type"] == "BadValue"
    assert of_router.attributes["db.response.status_code"] == "2"


@pytest.mark.parametrize(
    "comment", ["hello", traceparent("0" * 32), traceparent("4" * 32, "00"), {"traceparent": 5}, ["x"], None]
)
def test_nothing_else_is_traced(numbers: Collection[dict[str, Any]], collector: Collector, comment: object) -> None:
    assert numbers.find_one({"key": 5}, comment=comment) is not None
    trace = new_trace()
    assert numbers.find_one({"key": 5}, comment=traceparent(trace)) is not None
    collector.of_trace(trace, 4)  # sent after anything of the first
    assert not [each for each in collector.wait(bool) if each.trace_id in ("0" * 32, "4" * 32)]
    assert all(each.parent_id for each in collector.wait(bool))


@pytest.mark.parametrize("command", [{"find": "c"}, {"insert": "c", "documents": [{}]}, {"ping": 1}], ids=str)
def test_the_field_of_routers_is_unknown_to_clients(
    own: RunningCluster, numbers: Collection[dict[str, Any]], collector: Collector, command: dict[str, Any]
) -> None:
    strange, known = new_trace(), new_trace()
    with pytest.raises(OperationFailure) as refused:
        numbers.database.command({**command, "traceContext": traceparent(strange)})
    name = next(iter(command))
    assert refused.value.code == UNKNOWN_FIELD
    assert refused.value.details is not None
    assert refused.value.details["errmsg"] == f"BSON field '{name}.traceContext' is an unknown field."
    assert numbers.find_one({"key": 5}, comment=traceparent(known)) is not None
    collector.of_trace(known, 4)  # sent after anything of the first
    assert not [each for each in collector.wait(bool) if each.trace_id == strange]


def test_slow_lines_name_the_trace(own: RunningCluster, numbers: Collection[dict[str, Any]]) -> None:
    trace = new_trace()
    numbers.find_one({"key": 5, "$where": "sleep(150) || true"}, comment=traceparent(trace))
    lines = [
        json.loads(line)
        for file in (own.directory / "logs").glob("*.log")
        for line in file.read_text(errors="replace").splitlines()
        if trace in line and '"Slow operation"' in line
    ]
    assert {each["component"] for each in lines} == {"router.commands", "shardd.operations"}
    assert all(each["trace_id"] == trace and len(each["span_id"]) == 16 for each in lines)
    assert not [each for each in lines if each["span_id"] == CLIENT_SPAN]


def test_the_trace_is_an_exemplar(own: RunningCluster, numbers: Collection[dict[str, Any]]) -> None:
    trace = new_trace()
    numbers.find_one({"key": 5}, comment=traceparent(trace))
    for name, component in (
        ("router.0", "router"),
        *((each, "shardd") for each in own.metrics if each.startswith("shard")),
    ):
        url = f"http://{own.metrics[name]}/metrics"
        with urlopen(Request(url, headers={"accept": "application/openmetrics-text;version=1.0.0"})) as response:
            assert response.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
            text = response.read().decode()
            families = list(text_string_to_metric_families(text))  # type: ignore[no-untyped-call]
        with urlopen(url) as response:
            assert "trace_id" not in response.read().decode()
        durations = ["operation", "shard_request"] if component == "router" else ["operation"]
        for duration in durations:
            exemplars = [
                sample.exemplar
                for family in families
                if family.name == f"shardwright_{component}_{duration}_duration_seconds"
                for sample in family.samples
                if sample.exemplar is not None
            ]
            if component == "router":
                assert trace in [each.labels["trace_id"] for each in exemplars]
            assert all(set(each.labels) == {"trace_id", "span_id"} for each in exemplars)


def lines_of(own: RunningCluster, message: str) -> list[str]:
    return [
        line
        for file in (own.directory / "logs").glob("router.*.log")
        for line in file.read_text(errors="replace").splitlines()
        if message in line
    ]


def test_a_collector_that_is_away_harms_nothing(
    own: RunningCluster,
    numbers: Collection[dict[str, Any]],
    collector: Collector,
    serving_collector: ExitStack,
) -> None:
    collector.status = 400
    for _ in range(3):
        before = collector.requests
        for _ in range(20):
            assert numbers.find_one({"key": 5}, comment=traceparent(new_trace())) is not None
        collector.wait_requests(before + 2)  # of the router and of the shard
    assert len(lines_of(own, "Could not export spans")) == 1
    collector.status = 200
    for trace in (new_trace(), new_trace()):  # the line of the first is written before the second is sent
        numbers.find_one({"key": 5}, comment=traceparent(trace))
        collector.of_trace(trace, 4)
    assert len(lines_of(own, "Spans are exported again")) == 1
    serving_collector.close()
    assert numbers.find_one({"key": 5}, comment=traceparent(new_trace())) is not None


def test_clients_who_have_to_log_in_cause_no_spans_before(tmp_path: Path) -> None:
    collector = Collector()
    with (
        serving(collector) as url,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("SHARDWRIGHT_OTLP_ENDPOINT", url)
        patch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
        with running_cluster(tmp_path, "--auth", "--members", "1", "--shards", "1", "--routers", "1") as closed:
            strange, known = new_trace(), new_trace()
            for process in ("router.0", "shard0.0.shardd"):
                with raw_client(closed.address(process)) as raw:
                    for more in ({}, {"traceContext": traceparent(strange)}):
                        raw.command({"ping": 1, "comment": traceparent(strange), **more})
            with closed.client() as root:
                root["traced"]["c"].insert_one({}, comment=traceparent(known))
            for process in ("router.0", "shard0.0.shardd"):
                with closed.direct(process) as system:
                    system.admin.command("createUser", "chief", pwd=PASSWORD, roles=["root"])
                with identified(closed.address(process), "chief", "") as chief:
                    for command in ("ping", "find"):
                        answer = chief.command({command: "c", "traceContext": traceparent(strange)}, db="traced")
                        assert answer["code"] == ErrorCode.Unauthorized, (process, command)
            assert {each.service for each in collector.of_trace(known, 4)} == {ROUTER, SHARDD}
            assert not [each for each in collector.wait(bool) if each.trace_id == strange]
