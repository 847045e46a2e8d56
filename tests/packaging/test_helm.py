"""The Helm chart: its output is valid for Kubernetes, and agrees with the daemons and with itself."""

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import kubernetes_validate
import pytest
import yaml
from jsonschema import Draft7Validator

from shardwright.daemon.configuration.configuration import configuration
from shardwright.daemon.configuration.option import argument_parser
from shardwright.daemon.configuration.table import PROGRAMS
from shardwright.deploy.host_files import read_member
from shardwright.deploy.mongod import find_mongod
from tests.packaging.helm_template import Chart, TemplateError

FOLDER: Final = Path(__file__).parents[2] / "packaging" / "helm" / "shardwright"
CHART: Final = Chart(FOLDER)
KUBERNETES: Final = ("1.27", "1.33")

_SHARD: Final = CHART.values["shards"][0]
CASES: Final[dict[str, dict[str, Any]]] = {
    "defaults": {},
    "issuer": {"security": {"tls": {"issuer": {"name": "ours"}, "clientNames": ["db.example.net"]}}},
    "without TLS": {"security": {"tls": {"enabled": False}}},
    "two shards": {"shards": [_SHARD, {**_SHARD, "name": "shard1", "members": 1, "storageClass": "fast"}]},
    "names that YAML reads as other types": {"shards": [{**_SHARD, "name": name} for name in ("1", "true", "0x1f")]},
    "autoscaled": {"routers": {"autoscaling": {"enabled": True}, "service": {"annotations": {"a": "b"}}}},
    "open": {"networkPolicy": {"enabled": False}, "antiAffinity": "preferred"},
    "restricted": {
        "networkPolicy": {
            "clients": [{"podSelector": {"matchLabels": {"app": "shop"}}}],
            "monitoring": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}],
        },
        "config": {"resources": {"requests": {"cpu": "100m"}}},
    },
}
RENDERED: Final = {name: CHART.documents(changes) for name, changes in CASES.items()}
KINDS_WITHOUT_SCHEMA: Final = ("Certificate",)


def of_kind(documents: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [each for each in documents if each["kind"] == kind]


def pods(documents: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The specifications of all pods."""
    return [each["spec"]["template"]["spec"] for each in documents if "template" in each.get("spec", {})]


def containers(documents: list[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    for pod in pods(documents):
        for container in (*pod["initContainers"], *pod["containers"]):
            yield pod, container


each_case = pytest.mark.parametrize("case", CASES)


@each_case
@pytest.mark.parametrize("version", KUBERNETES)
def test_objects_are_valid(case: str, version: str) -> None:
    for document in RENDERED[case]:
        if document["kind"] not in KINDS_WITHOUT_SCHEMA:
            kubernetes_validate.validate(document, version, strict=True)


@each_case
def test_values_fit_their_schema(case: str) -> None:
    validator = Draft7Validator(json.loads((FOLDER / "values.schema.json").read_text()))
    validator.check_schema(validator.schema)
    validator.validate(CHART.values)
    for key, value in CASES[case].items():
        validator.validate(
            {**CHART.values, key: value if isinstance(value, list | str) else {**CHART.values[key], **value}}
        )


@pytest.mark.parametrize(
    "wrong",
    [
        {"shard": []},
        {"shards": []},
        {"shards": [{**_SHARD, "name": "config"}]},
        {"shards": [{**_SHARD, "name": "init"}]},
        {"shards": [{**_SHARD, "name": "Shard0"}]},
        {"shards": [{**_SHARD, "name": "shard_0"}]},
        {"shards": [{**_SHARD, "name": "-shard"}]},
        {"shards": [{**_SHARD, "name": "s" * 23}]},
        {"shards": [{**_SHARD, "name": 1}]},
        {"shards": [{**_SHARD, "storage": "much"}]},
        {"shards": [{**_SHARD, "storageClass": "Fast disks"}]},
        {"config": {**CHART.values["config"], "name": "other"}},
        {"clusterDomain": "cluster..local"},
        {"topologyKey": "a b"},
        {"security": {**CHART.values["security"], "keySecret": "The_key"}},
        {"security": {**CHART.values["security"], "tls": {"issuer": {"name": "My issuer"}}}},
        {"security": {**CHART.values["security"], "tls": {"clientNames": ["db example"]}}},
        {"antiAffinity": "maybe"},
    ],
)
def test_the_schema_refuses_mistakes(wrong: dict[str, Any]) -> None:
    assert not Draft7Validator(json.loads((FOLDER / "values.schema.json").read_text())).is_valid(
        {**CHART.values, **wrong}
    )


@pytest.mark.parametrize(
    ("wrong", "release", "text"),
    [
        ({"shards": [_SHARD, {**_SHARD, "members": 1}]}, "db", "two shards are called shard0"),
        (
            {"routers": {"replicas": 7, "autoscaling": {"enabled": True}}},
            "db",
            "routers.replicas is 7, and routers.autoscaling.maxReplicas only 6",
        ),
        ({}, "7db", "the release name 7db cannot begin the names of services"),
        ({}, "my.db", "the release name my.db cannot begin the names of services"),
    ],
)
def test_the_chart_refuses_what_the_schema_cannot(wrong: dict[str, Any], release: str, text: str) -> None:
    with pytest.raises(TemplateError, match=re.escape(text)):
        CHART.documents(wrong, release=release)


def test_without_autoscaling_its_limit_is_not_used() -> None:
    CHART.documents({"routers": {"replicas": 7}})


@each_case
def test_pods_are_restricted(case: str) -> None:
    for pod, container in containers(RENDERED[case]):
        assert pod["enableServiceLinks"] is False
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        volumes = {each["name"] for each in pod["volumes"]} | {"data"}
        assert {each["name"] for each in container["volumeMounts"]} <= volumes


@each_case
def test_commands_have_options_that_exist(case: str) -> None:
    mongod_help = subprocess.run(
        [find_mongod(), "--help"], capture_output=True, text=True, timeout=30, check=True
    ).stdout
    for _, container in containers(RENDERED[case]):
        program = next((each for each in PROGRAMS if each.name == container["command"][0]), None)
        words = container["command"][1:]
        if program is not None:
            values = configuration(program, [word.replace("$(POD_NAME)", "pod-0") for word in words], {}).values
            assert values.metrics_port == 9216
            assert known_flags(program) >= {word.partition("=")[0] for word in words}
        elif container["command"][0] == "mongod":
            assert all(word.partition("=")[0] in mongod_help for word in words)
        elif container["command"][0] == "bash" and words[0] == "-ec":
            subprocess.run(["bash", "-n", "-c", words[1]], check=True, timeout=20)


def known_flags(program: Any) -> set[str]:  # noqa: ANN401 - a program
    return {flag for action in argument_parser(program)._actions for flag in action.option_strings}


@each_case
def test_daemons_and_mongods_of_a_pod_belong_together(case: str) -> None:
    for each in of_kind(RENDERED[case], "StatefulSet"):
        mongod, daemon = each["spec"]["template"]["spec"]["containers"]
        port = next(word.partition("=")[2] for word in mongod["command"] if word.startswith("--port="))
        words = " ".join(daemon["command"])
        assert f"--mongod-socket=/run/shardwright/mongodb-{port}.sock" in words
        assert f":{port}" in next(word for word in daemon["command"] if word.startswith("--mongod-address"))
        assert f".{each['spec']['serviceName']}.data.svc.cluster.local" in words
        assert ("--mongod-tls" in words) == ("--tlsMode=requireTLS" in mongod["command"])
        for container in (mongod, daemon):
            assert {"name": "sockets", "mountPath": "/run/shardwright"} in container["volumeMounts"]
        services = {service["metadata"]["name"]: service for service in of_kind(RENDERED[case], "Service")}
        service = services[each["spec"]["serviceName"]]["spec"]
        assert (service["clusterIP"], service["publishNotReadyAddresses"]) == ("None", True)
        assert service["selector"] == each["spec"]["selector"]["matchLabels"]
        daemon_port = next(word.partition("=")[2] for word in daemon["command"] if word.startswith("--port="))
        assert f"/dev/tcp/127.0.0.1/{daemon_port}" in mongod["lifecycle"]["preStop"]["exec"]["command"][-1]


@each_case
def test_labels_select_what_they_should(case: str) -> None:
    documents = RENDERED[case]
    labels = [
        each["spec"]["template"]["metadata"]["labels"] for each in documents if "template" in each.get("spec", {})
    ]
    for each in (*of_kind(documents, "PodDisruptionBudget"), *of_kind(documents, "Service")):
        selector = each["spec"]["selector"]
        wanted = selector.get("matchLabels", selector)
        assert len([found for found in labels if wanted.items() <= found.items()]) == 1
    assert len(of_kind(documents, "PodDisruptionBudget")) == len(of_kind(documents, "StatefulSet")) + 1


@each_case
def test_the_job_has_the_files_of_every_set(case: str, tmp_path: Path) -> None:
    (files,) = of_kind(RENDERED[case], "ConfigMap")
    (tmp_path / "key").write_text("abcdef")
    sets = {each["metadata"]["name"].removeprefix("db-"): each for each in of_kind(RENDERED[case], "StatefulSet")}
    script = files["data"]["init.sh"]
    subprocess.run(["bash", "-n", "-c", script], check=True, timeout=20)
    compile(files["data"]["first_user.py"], "first_user.py", "exec")
    for name, text in files["data"].items():
        if name.endswith(".yaml"):
            (tmp_path / name).write_text(text.replace("/etc/shardwright", str(tmp_path)).replace("-MEMBER.", "-0."))
    for name, each in sets.items():
        member = read_member(tmp_path, name)
        assert member.is_shard == (name != "config")
        pod = f"{each['metadata']['name']}-0.{each['spec']['serviceName']}.data.svc.cluster.local"
        _, daemon = each["spec"]["template"]["spec"]["containers"]
        assert f"{member.mongod.replace(pod, '$(POD_NAME).' + pod.partition('.')[2])}" in " ".join(daemon["command"])
        assert f"bring_up {name} {each['spec']['replicas']} {member.daemon}" in script


def test_certificates_are_for_the_names_of_pods() -> None:
    (certificate,) = of_kind(RENDERED["issuer"], "Certificate")
    names = certificate["spec"]["dnsNames"]
    assert "*.db-shard0.data.svc.cluster.local" in names
    assert "db.example.net" in names
    assert certificate["spec"]["subject"] == {"organizations": ["shardwright"], "organizationalUnits": ["servers"]}
    secrets = {
        volume["secret"]["secretName"]
        for pod in pods(RENDERED["issuer"])
        for volume in pod["volumes"]
        if "secret" in volume
    }
    assert certificate["spec"]["secretName"] in secrets


def test_only_the_cluster_reaches_mongods() -> None:
    policies = {each["metadata"]["name"]: each["spec"] for each in of_kind(RENDERED["restricted"], "NetworkPolicy")}
    cluster, monitoring = policies["db-sets"]["ingress"]
    assert {rule["port"] for rule in cluster["ports"]} == {27018, 27019, 28018, 28019}
    assert cluster["from"] == [
        {"podSelector": {"matchLabels": {"app.kubernetes.io/name": "shardwright", "app.kubernetes.io/instance": "db"}}}
    ]
    assert {rule["port"] for rule in monitoring["ports"]} == {9216}
    assert {"podSelector": {"matchLabels": {"app": "shop"}}} in policies["db-router"]["ingress"][0]["from"]
    assert of_kind(RENDERED["open"], "NetworkPolicy") == []


def test_autoscaled_routers_leave_their_number_to_the_scaler() -> None:
    (routers,) = of_kind(RENDERED["autoscaled"], "Deployment")
    (scaler,) = of_kind(RENDERED["autoscaled"], "HorizontalPodAutoscaler")
    assert "replicas" not in routers["spec"]
    assert scaler["spec"]["scaleTargetRef"]["name"] == routers["metadata"]["name"]
    assert of_kind(RENDERED["defaults"], "HorizontalPodAutoscaler") == []


def test_versions_agree() -> None:
    chart = yaml.safe_load((FOLDER / "Chart.yaml").read_text())
    version = re.search(r'^version = "(.+)"$', (FOLDER.parents[2] / "pyproject.toml").read_text(), re.MULTILINE)
    assert version is not None
    assert chart["version"] == chart["appVersion"] == version[1]
