"""What the pods of cluster/kubernetes may do and reach, and where secrets come from."""

import copy
import re

import pytest
from manifests import CLUSTER, KUBERNETES, RAY_KINDS, documents, shipped

pytestmark = pytest.mark.proof

ALL = shipped()
TOKEN_FOLDER = "/var/run/secrets/kubernetes.io/serviceaccount"
SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL|WEBHOOK", re.IGNORECASE)


def pods(value, way=()):
    """Every pod template below a value, with the way to it."""
    if isinstance(value, dict):
        if isinstance(value.get("spec"), dict) and "containers" in value["spec"]:
            yield "/".join(way), value
        for key, one in value.items():
            yield from pods(one, (*way, key))
    elif isinstance(value, list):
        for k, one in enumerate(value):
            yield from pods(one, (*way, str(k)))


PODS = [
    pytest.param(thing, pod, id=f"{origin}-{thing['kind']}-{way}")
    for origin, thing in ALL
    for way, pod in pods(thing.get("spec", {}))
]


def scalers(value):
    """The autoscalers that KubeRay puts beside a head, as containers."""
    if isinstance(value, dict):
        if "autoscalerOptions" in value:
            yield {"name": "autoscaler", **value["autoscalerOptions"]}
        for one in value.values():
            yield from scalers(one)


def unrestricted(pod):
    """What Kubernetes' pod security standard `restricted` would refuse, and what this project asks for besides."""
    spec, found = pod["spec"], []
    own = spec.get("securityContext", {})
    if own.get("runAsNonRoot") is not True or own.get("runAsUser") in (None, 0):
        found.append("runs as root")
    if own.get("seccompProfile", {}).get("type") != "RuntimeDefault":
        found.append("seccompProfile")
    if {"hostNetwork", "hostPID", "hostIPC", "hostUsers"} & set(spec):
        found.append("host namespaces")
    allowed = {"configMap", "downwardAPI", "emptyDir", "persistentVolumeClaim", "projected", "secret", "ephemeral", "csi"}
    found += [f"volume {volume['name']}" for volume in spec.get("volumes", []) if not set(volume) - {"name"} <= allowed]
    for container in [*spec["containers"], *spec.get("initContainers", [])]:
        found += unrestricted_container(container)
    return found


def unrestricted_container(container):
    context, resources, found = container.get("securityContext", {}), container.get("resources", {}), []
    rules = {
        "may gain rights": context.get("allowPrivilegeEscalation") is not False,
        "capabilities": context.get("capabilities") != {"drop": ["ALL"]},
        "privileged": context.get("privileged", False),
        "writes to its root": context.get("readOnlyRootFilesystem") is not True,
        "no limits": not {"cpu", "memory"} <= set(resources.get("limits", {})),
        "no requests": not {"cpu", "memory"} <= set(resources.get("requests", {})),
    }
    found += [f"{container['name']}: {rule}" for rule, broken in rules.items() if broken]
    return found


@pytest.mark.parametrize(("thing", "pod"), PODS)
def test_pods_are_restricted(thing, pod):
    assert unrestricted(pod) == []
    if thing["kind"] in RAY_KINDS:
        assert [problem for scaler in scalers(thing) for problem in unrestricted_container(scaler)] == []
    writable = {
        mount["mountPath"] for one in pod["spec"]["containers"] for mount in one["volumeMounts"] if not mount.get("readOnly")
    }
    assert writable <= {"/tmp", "/dev/shm"}
    for mount in (mount for one in pod["spec"]["containers"] for mount in one["volumeMounts"]):
        assert mount["name"] in {volume["name"] for volume in pod["spec"]["volumes"]}


def test_that_check_can_fail():
    (thing,) = documents((KUBERNETES / "base" / "rayjob.yaml").read_text("utf-8"))
    pod = copy.deepcopy(thing["spec"]["submitterPodTemplate"])
    assert unrestricted(pod) == []
    pod["spec"]["securityContext"].pop("seccompProfile")
    pod["spec"]["containers"][0]["securityContext"]["capabilities"]["add"] = ["SYS_ADMIN"]
    pod["spec"]["volumes"].append({"name": "host", "hostPath": {"path": "/"}})
    pod["spec"]["containers"][0]["resources"].pop("limits")
    assert len(unrestricted(pod)) == 4
    (namespace,) = documents((KUBERNETES / "base" / "namespace.yaml").read_text("utf-8"))
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"


def test_the_head_has_no_gpu_and_takes_no_work_and_workers_start_from_none():
    groups = [thing for _, thing in ALL if thing["kind"] in RAY_KINDS]
    assert len(groups) == 7
    for thing in groups:
        spec = thing["spec"]["jobTemplate"] if thing["kind"] == "RayCronJob" else thing["spec"]
        assert not {"entrypointNumGpus", "entrypointNumCpus", "entrypointResources", "runtimeEnvYAML", "metadata"} & set(
            spec
        )
        cluster = spec.get("rayClusterSpec", spec)
        assert cluster["enableInTreeAutoscaling"] is True
        assert cluster["authOptions"] == {"mode": "token"}
        of_gpus = [group for group in cluster["workerGroupSpecs"] if group["groupName"] == "gpu"]
        promised = sum(group["maxReplicas"] * gpus_of(group) for group in of_gpus)
        assert cluster["headGroupSpec"]["resources"] == {"CPU": "0"} | (
            {"autoscaled_gpus": str(promised)} if promised else {}
        )
        assert "gpu" not in str(cluster["headGroupSpec"]["template"]).lower()
        for group in cluster["workerGroupSpecs"]:
            assert group["replicas"] == group["minReplicas"] == 0
            assert bool(gpus_of(group)) == (group["groupName"] == "gpu")
            (container,) = group["template"]["spec"]["containers"]
            assert container["resources"]["limits"] == container["resources"]["requests"]
            shared = next(volume for volume in group["template"]["spec"]["volumes"] if volume["name"] == "shm")["emptyDir"]
            # Ray's object store takes 30 % of the memory; where /dev/shm is smaller it goes to a disk.
            assert shared["medium"] == "Memory"
            assert int(shared["sizeLimit"][:-2]) >= 0.3 * int(container["resources"]["limits"]["memory"][:-2])


def gpus_of(group):
    """The GPUs of each pod of a group."""
    (container,) = group["template"]["spec"]["containers"]
    return int(container["resources"]["limits"].get("nvidia.com/gpu", 0))


def test_the_head_is_not_evicted_to_tidy_up():
    for _, thing in ((origin, thing) for origin, thing in ALL if thing["kind"] in RAY_KINDS):
        spec = thing["spec"]["jobTemplate"] if thing["kind"] == "RayCronJob" else thing["spec"]
        annotations = spec.get("rayClusterSpec", spec)["headGroupSpec"]["template"]["metadata"]["annotations"]
        assert annotations["cluster-autoscaler.kubernetes.io/safe-to-evict"] == "false"
        assert annotations["karpenter.sh/do-not-disrupt"] == "true"


def test_only_the_watch_and_the_autoscaler_reach_the_api_server():
    for _, thing in ALL:
        for _, pod in pods(thing.get("spec", {})):
            night = pod["metadata"]["labels"]["app.kubernetes.io/component"] == "night"
            assert pod["spec"]["automountServiceAccountToken"] is night
            assert pod["spec"]["serviceAccountName"] == {"CronJob": "tempscale-night"}.get(
                thing["kind"], pod["spec"]["serviceAccountName"]
            )
            for container in pod["spec"]["containers"]:
                assert TOKEN_FOLDER not in {mount["mountPath"] for mount in container["volumeMounts"]}
        for scaler in scalers(thing):
            assert TOKEN_FOLDER in {mount["mountPath"] for mount in scaler["volumeMounts"]}
    roles = {str(thing["rules"]) for _, thing in ALL if thing["kind"] == "Role"}
    assert roles == {str([{"apiGroups": ["ray.io"], "resources": ["rayjobs"], "verbs": ["get", "create"]}])}


def test_secrets_are_named_and_never_written():
    assert not [thing for _, thing in ALL if thing["kind"] == "Secret"]
    for _, thing in ALL:
        for _, pod in pods(thing.get("spec", {})):
            for container in pod["spec"]["containers"]:
                for variable in container.get("env", []):
                    assert "value" not in variable, f"{variable['name']} is written out"
                    assert not SECRET_NAME.search(variable["name"]) or "secretKeyRef" in variable["valueFrom"]
                for source in container.get("envFrom", []):
                    assert set(source) == {"secretRef"}
            head = pod["spec"]["containers"][0]["name"] == "ray-head"
            assert ("TEMPSCALE_WEBHOOK" in str(pod)) is head  # The driver alone posts the verdict.
    told = re.compile(
        r"AKIA[0-9A-Z]{12}|ghp_\w{20}|hf_[A-Za-z]{20}|hooks\.slack\.com/services/\w|-----BEGIN|xox[bp]-|"
        r"(?:aws_secret_access_key|password|token)\s*[:=]\s*[\"']?[A-Za-z0-9/+]{20}", re.IGNORECASE
    )  # fmt: skip
    for path in CLUSTER.rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            assert not told.search(path.read_text("utf-8")), path


def selects(selector, labels):
    assert set(selector) <= {"matchLabels"}
    return selector.get("matchLabels", {}).items() <= labels.items()


@pytest.mark.parametrize("origin", ["base", "cpu", "eks", "gke"])
def test_the_network_is_closed_but_for_what_is_named(origin):
    policies = [thing for where, thing in ALL if where == origin and thing["kind"] == "NetworkPolicy"]
    deny = next(policy["spec"] for policy in policies if policy["metadata"]["name"] == "deny")
    assert deny == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    for policy in policies:
        for rule in policy["spec"].get("ingress", []):
            assert rule.get("from"), "a rule without `from` lets in the whole cluster and beyond"
            assert all(set(peer) <= {"podSelector", "namespaceSelector"} for peer in rule["from"])
        for rule in policy["spec"].get("egress", []):
            ports = {port["port"] for port in rule.get("ports", [])}
            assert "to" in rule or ports == {443, 6443}
    kinds = set()
    for where, thing in ALL:
        if where in (origin, "raycluster.yaml", "raycronjob.yaml"):
            for _, pod in pods(thing.get("spec", {})):
                labels = pod["metadata"]["labels"]
                matching = {p["metadata"]["name"] for p in policies if selects(p["spec"]["podSelector"], labels)}
                component = labels["app.kubernetes.io/component"]
                assert matching - {"metadata-server"} == {"deny", "names", component}
                kinds.add(component)
    assert kinds == {"ray", "submitter", "night"}
    ray = next(policy["spec"] for policy in policies if policy["metadata"]["name"] == "ray")
    among, dashboard, metrics = ray["ingress"]
    assert among["from"] == [{"podSelector": ray["podSelector"]}]
    assert [port["port"] for port in dashboard["ports"]] == [8265]
    assert [port["port"] for port in metrics["ports"]] == [8080]
    operator = dashboard["from"][1]
    assert operator["podSelector"]["matchLabels"] == {"app.kubernetes.io/name": "kuberay-operator"}
    assert operator["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": "ray-system"}
