"""Every manifest against the CRDs of KubeRay and the schemas of Kubernetes, strictly, and against the operator's rules."""

import copy
import datetime
import re
import tomllib
import zoneinfo

import pytest
from kuberay_rules import crd_schemas, refused, wrong
from manifests import KUBERNETES, RAY_KINDS, REPOSITORY, documents, shipped

pytestmark = pytest.mark.proof

KUBERNETES_VERSIONS = ("1.31", "1.34", "1.37")
"""From the first with podFailurePolicy out of beta; those that kubernetes-validate brings."""
ALL = shipped()
RAY = [pytest.param(thing, id=f"{origin}-{thing['kind']}") for origin, thing in ALL if thing["kind"] in RAY_KINDS]
BUILT_IN = [thing for _, thing in ALL if thing["kind"] not in RAY_KINDS]


@pytest.fixture(scope="module")
def crds():
    return crd_schemas()


@pytest.mark.parametrize("thing", RAY)
def test_ray_kinds_hold_to_their_crd(thing, crds):
    assert thing["apiVersion"] == "ray.io/v1"
    assert wrong(thing, crds[thing["kind"]]) == []


@pytest.mark.parametrize(
    "change",
    [
        lambda spec: spec.update(shutdownAfterJobFinished=True),
        lambda spec: spec["rayClusterSpec"]["authOptions"].update(mode="password"),
        lambda spec: spec["rayClusterSpec"]["workerGroupSpecs"][0].pop("groupName"),
        lambda spec: spec["rayClusterSpec"]["headGroupSpec"]["template"]["spec"].update(automountServiceAccounttoken=False),
        lambda spec: spec["submitterPodTemplate"]["spec"]["securityContext"].update(runAsNonRoot="yes"),
    ],
)
def test_that_check_can_fail(change, crds):
    thing = copy.deepcopy(template())
    change(thing["spec"])
    assert len(wrong(thing, crds["RayJob"])) == 1


def template():
    """The RayJob that each night is a copy of."""
    (thing,) = documents((KUBERNETES / "base" / "rayjob.yaml").read_text("utf-8"))
    return thing


@pytest.mark.parametrize("version", KUBERNETES_VERSIONS)
def test_built_in_kinds_hold_to_the_schema_of_kubernetes(version):
    import kubernetes_validate

    kinds = set()
    for thing in BUILT_IN:
        kubernetes_validate.validate(thing, version, strict=True)
        kinds.add(thing["kind"])
    named = {"Namespace", "ServiceAccount", "Role", "RoleBinding", "NetworkPolicy", "ConfigMap", "CronJob", "PriorityClass"}
    assert kinds == named
    cron = copy.deepcopy(next(thing for thing in BUILT_IN if thing["kind"] == "CronJob"))
    cron["spec"]["concurencyPolicy"] = cron["spec"].pop("concurrencyPolicy")
    with pytest.raises(kubernetes_validate.ValidationError, match="concurencyPolicy"):
        kubernetes_validate.validate(cron, version, strict=True)


@pytest.mark.parametrize("thing", RAY)
def test_the_operator_refuses_nothing(thing):
    assert refused(thing) == []


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda spec: spec.update(shutdownAfterJobFinishes=False, suspend=False), "ttlSecondsAfterFinished needs"),
        (lambda spec: spec.update(submissionMode="SidecarMode"), "SidecarMode with a submitter"),
        (lambda spec: spec["rayClusterSpec"].update(rayVersion="2.51.1"), "a token needs"),
        (lambda spec: spec["rayClusterSpec"]["workerGroupSpecs"][0].update(minReplicas=9), "minReplicas and"),
        (
            lambda spec: spec["rayClusterSpec"]["headGroupSpec"]["rayStartParams"].update({"num-cpus": "1"}),
            "resources twice",
        ),
    ],
)
def test_those_rules_can_fail(change, told):
    thing = copy.deepcopy(template())
    change(thing["spec"])
    (problem,) = refused(thing)
    assert told in problem


def test_a_cluster_is_the_same_in_all_three_kinds():
    (cluster,) = documents((KUBERNETES / "raycluster.yaml").read_text("utf-8"))
    (cron,) = documents((KUBERNETES / "raycronjob.yaml").read_text("utf-8"))
    spec = template()["spec"]
    assert cluster["spec"] == spec["rayClusterSpec"]
    assert spec.pop("suspend") is True
    assert cron["spec"]["jobTemplate"] == spec


def test_the_night_is_watched_to_its_end_and_one_at_a_time():
    cron = next(thing for thing in BUILT_IN if thing["kind"] == "CronJob")["spec"]
    assert cron["concurrencyPolicy"] == "Forbid"
    assert cron["timeZone"] in zoneinfo.available_timezones()
    job, night = cron["jobTemplate"]["spec"], template()
    command = job["template"]["spec"]["containers"][0]["command"]
    assert command[command.index("--template") + 1] == night["metadata"]["name"]
    watched = int(command[command.index("--deadline") + 1])
    attempts = 1 + night["spec"]["backoffLimit"]
    assert attempts * night["spec"]["activeDeadlineSeconds"] < watched < job["activeDeadlineSeconds"] < 86_400
    assert job["template"]["spec"]["restartPolicy"] == "Never"  # podFailurePolicy asks for it
    failing = [rule for rule in job["podFailurePolicy"]["rules"] if rule["action"] == "FailJob"]
    assert failing[0]["onExitCodes"]["values"] == [1, 2, 3]
    assert len(f"{night['metadata']['name']}-{datetime.date.today()}") <= 47


def test_images_and_versions_are_those_of_this_checkout():
    import tempscale

    pinned = dict(line.split("==") for line in (REPOSITORY / "constraints.txt").read_text().split())
    assert set(re.findall(r"tempscale-(?:cpu|cuda):([\w.-]+)", str(ALL))) == {tempscale.__version__}
    assert set(re.findall(r"'rayVersion': '([^']+)'", str(ALL))) == {pinned["ray"]}
    assert tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["name"] == "tempscale"
