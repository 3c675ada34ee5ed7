"""Kubernetes manifests by the published schemas; Compose, Dockerfile and manifests by what the commands take."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import click
import pytest
import yaml
from kubernetes_validate import latest_version, validate

from effects import Effects, enqueue
from effects.cli.main import cli
from effects.worker.parts import FLUSH_SECONDS
from tests.house.source import ROOT

EXAMPLES = ROOT / "examples"
MANIFESTS = [
    (path.name, document)
    for path in sorted((EXAMPLES / "kubernetes").glob("*.yaml"))
    for document in yaml.safe_load_all(path.read_text())
]
KEDA = [document for _, document in MANIFESTS if document["apiVersion"] == "keda.sh/v1alpha1"]
OF_KUBERNETES = [(name, document) for name, document in MANIFESTS if document not in KEDA]
# KEDA's objects have no published schema here: the fields that these two kinds use, by KEDA's reference of v1alpha1.
KEDA_FIELDS = {
    "TriggerAuthentication": {"secretTargetRef": {"parameter": {}, "name": {}, "key": {}}},
    "ScaledObject": {
        "scaleTargetRef": {"name": {}}, "minReplicaCount": {}, "maxReplicaCount": {}, "pollingInterval": {},
        "triggers": {
            "type": {}, "metricType": {}, "authenticationRef": {"name": {}},
            "metadata": {"query": {}, "targetQueryValue": {}},
        },
        "advanced": {
            "horizontalPodAutoscalerConfig": {"behavior": {"scaleDown": {"stabilizationWindowSeconds": {}}}},
        },
    },
}  # fmt: skip
COMPOSE = yaml.safe_load((EXAMPLES / "compose" / "compose.yaml").read_text())
DOCKERFILE = (EXAMPLES / "compose" / "Dockerfile").read_text()


@pytest.mark.parametrize(("name", "document"), OF_KUBERNETES, ids=[f"{d['kind']}" for _, d in OF_KUBERNETES])
@pytest.mark.parametrize("version", ["1.29", latest_version()])
def test_a_manifest_is_valid_and_has_no_field_that_kubernetes_does_not_know(
    name: str, document: Any, version: str
) -> None:
    validate(document, version, strict=True)


def unlisted(node: Any, fields: Any, where: str = "") -> list[str]:
    if isinstance(node, list):
        return [path for item in node for path in unlisted(item, fields, where)]
    if not isinstance(node, dict):
        return []
    own = [f"{where}.{name}" for name in node if name not in fields]
    return own + [path for name in node if name in fields for path in unlisted(node[name], fields[name], name)]


@pytest.mark.parametrize("document", KEDA, ids=[document["kind"] for document in KEDA])
def test_an_object_of_keda_has_listed_fields_only(document: Any) -> None:
    assert unlisted(document["spec"], KEDA_FIELDS[document["kind"]]) == []
    assert unlisted({**document["spec"], "replicas": 2}, KEDA_FIELDS[document["kind"]]) == [".replicas"]


def test_keda_scales_the_worker_and_its_queries_have_a_number_at_zero(app: Effects) -> None:
    [authentication], [scaled] = ([each for each in KEDA if each["kind"] == kind] for kind in KEDA_FIELDS)
    [hpa] = [document for _, document in MANIFESTS if document["kind"] == "HorizontalPodAutoscaler"]
    spec = scaled["spec"]
    assert spec["scaleTargetRef"]["name"] == hpa["spec"]["scaleTargetRef"]["name"]
    assert {trigger["authenticationRef"]["name"] for trigger in spec["triggers"]} == {
        authentication["metadata"]["name"]
    }
    assert all(isinstance(value, str) for trigger in spec["triggers"] for value in trigger["metadata"].values())
    queries = [trigger["metadata"]["query"] for trigger in spec["triggers"]]

    def numbers() -> list[float]:
        with app.store.read() as connection:
            return [connection.exec_driver_sql(query).scalar_one() for query in queries]

    assert numbers() == [0, 0]
    enqueue("scripted", {}, effects=app)
    count, oldest = numbers()
    assert (count, oldest >= 0) == (1, True)


def test_a_wrong_manifest_is_refused() -> None:
    """Else the test above would prove nothing."""
    [deployment] = [document for _, document in MANIFESTS if document["kind"] == "Deployment"]
    with pytest.raises(Exception, match="replica"):
        validate({**deployment, "spec": {**deployment["spec"], "replica": 2}}, latest_version(), strict=True)


def containers(node: Any) -> Iterator[Any]:
    if isinstance(node, dict):
        yield from node.get("containers", [])
        for value in node.values():
            yield from containers(value)
    elif isinstance(node, list):
        for value in node:
            yield from containers(value)


def command_lines() -> list[list[str]]:
    [default] = re.findall(r"^CMD (\[.*\])$", DOCKERFILE, re.MULTILINE)
    lines = [yaml.safe_load(default)]
    lines += [container["args"] for _, document in MANIFESTS for container in containers(document)]
    return lines + [service["command"] for service in COMPOSE["services"].values() if "command" in service]


@pytest.mark.parametrize("words", command_lines(), ids=lambda words: " ".join(words[2:]))
def test_a_command_line_is_one_that_effects_takes(words: list[str]) -> None:
    context = cli.make_context("effects", list(words), resilient_parsing=True)
    name, command, rest = cli.resolve_command(context, [*context._protected_args, *context.args])
    assert command is not None
    assert isinstance(command.make_context(name, rest, parent=context), click.Context)


def test_the_probes_are_those_of_the_worker_and_the_grace_is_long_enough() -> None:
    [deployment] = [document for _, document in MANIFESTS if document["kind"] == "Deployment"]
    pod = deployment["spec"]["template"]["spec"]
    [worker] = pod["containers"]
    paths = {worker[probe]["httpGet"]["path"] for probe in ("startupProbe", "livenessProbe", "readinessProbe")}
    assert paths == {"/livez", "/readyz"}
    assert worker["livenessProbe"]["httpGet"]["path"] == "/livez"
    [port] = worker["ports"]
    assert str(port["containerPort"]) == worker["args"][worker["args"].index("--metrics-port") + 1]
    [grace] = [float(entry["value"]) for entry in worker["env"] if entry["name"] == "EFFECTS_GRACE_SECONDS"]
    slept = float(worker["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod["terminationGracePeriodSeconds"] >= slept + grace + FLUSH_SECONDS + 5


def test_compose_waits_for_what_a_service_needs_and_mounts_what_there_is() -> None:
    services = COMPOSE["services"]
    for service in services.values():
        assert service.get("depends_on", {}).keys() <= services.keys()
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert source in COMPOSE["volumes"] or (EXAMPLES / "compose" / source).resolve().is_dir()
    scraped = yaml.safe_load((EXAMPLES / "monitoring" / "prometheus.yml").read_text())["scrape_configs"]
    [target] = scraped[0]["static_configs"][0]["targets"]
    assert target.split(":")[0] in services


def test_the_images_entry_point_gets_its_signals() -> None:
    assert 'ENTRYPOINT ["effects"]' in DOCKERFILE
    assert re.search(r"^USER \d+$", DOCKERFILE, re.MULTILINE)


def test_the_page_about_compose_names_what_the_file_has() -> None:
    page = (ROOT / "docs" / "compose.md").read_text()
    lines = re.findall(r"^docker compose (?:exec|logs --follow) (\w+)", page, re.MULTILINE)
    lines += re.findall(r"--scale (\w+)=", page)
    assert lines
    assert set(lines) <= COMPOSE["services"].keys()
    ports = {port.split(":")[1] for service in COMPOSE["services"].values() for port in service.get("ports", [])}
    assert set(re.findall(r"http://127\.0\.0\.1:(\d+)", page)) == ports
    assert COMPOSE["services"]["worker"]["stop_grace_period"] in page


# -- walls -------------------------------------------------------------------------------------------------------


def pod_specs(value: Any) -> Iterator[Any]:
    """Every mapping with containers in it, however deep."""
    if isinstance(value, dict):
        if "containers" in value:
            yield value
        for each in value.values():
            yield from pod_specs(each)


def test_every_pod_has_the_same_walls() -> None:
    pods = [spec for _, document in MANIFESTS for spec in pod_specs(document)]
    assert len(pods) == 4
    walls = [(pod["securityContext"], each["securityContext"]) for pod in pods for each in pod["containers"]]
    assert all(each == walls[0] for each in walls)
    assert walls[0][0]["runAsNonRoot"]
    assert walls[0][1]["readOnlyRootFilesystem"]
    assert walls[0][1]["capabilities"] == {"drop": ["ALL"]}


def test_every_unit_has_the_same_walls() -> None:
    units = [path.read_text().splitlines() for path in sorted((EXAMPLES / "systemd").glob("*.service"))]
    walls = [set(lines[lines.index("NoNewPrivileges=true") :]) for lines in units]
    assert len(walls) == 3
    assert {"CapabilityBoundingSet=", "ProtectSystem=strict", "ProtectHome=true"} <= walls[0]
    assert all(each - {"", "[Install]", "WantedBy=multi-user.target"} == walls[0] for each in walls)


def test_no_key_of_a_development_machine_gets_into_an_image() -> None:
    """`docs/compose.md` has EFFECTS_KEYS written to `.env`, beside a Dockerfile that copies the folder."""
    assert "COPY . ." in DOCKERFILE
    assert {".env", ".git", "*.db"} <= set((EXAMPLES / "compose" / ".dockerignore").read_text().splitlines())
