"""What refuses an object of KubeRay: its CRD, read as strictly as an API server can, and the operator's own rules."""

import functools
import re
import zoneinfo

import jsonschema
import pytest
import yaml
from manifests import RAY_KINDS, REPOSITORY

CRDS = REPOSITORY.parent / "shared" / "schemas" / "kuberay-1.7.0"
LABEL = r"[a-z]([-a-z0-9]*[a-z0-9])?"


@functools.cache
def crd_schemas():
    """The strict schema of each of KubeRay's kinds."""
    if not CRDS.is_dir():
        pytest.skip(f"the CRDs of KubeRay 1.7.0 are absent: {CRDS} is no folder")
    found = {}
    for path in CRDS.glob("*.yaml"):
        crd = yaml.load(path.read_text("utf-8"), yaml.CSafeLoader)["spec"]
        (version,) = (version for version in crd["versions"] if version["storage"])
        assert (crd["group"], version["name"]) == ("ray.io", "v1")
        found[crd["names"]["kind"]] = strict(version["schema"]["openAPIV3Schema"])
    assert set(found) == RAY_KINDS
    return found


def strict(schema):
    """The schema, every object closed that says what it holds: as fieldValidation=Strict makes an API server read it."""
    if isinstance(schema, list):
        return [strict(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: strict(value) for key, value in schema.items()}
    if isinstance(schema.get("properties"), dict) and not schema.get("x-kubernetes-preserve-unknown-fields"):
        closed["additionalProperties"] = False
    return closed


def wrong(thing, schema):
    """What is wrong with an object by its CRD."""
    errors = jsonschema.Draft202012Validator(schema).iter_errors(thing)
    problems = [f"{error.json_path}: {error.message}" for error in errors]
    # The CRD says nothing of metadata: the API server knows that by heart.
    problems += [f"metadata.{key}" for key in set(thing["metadata"]) - {"name", "namespace", "labels", "annotations"}]
    return problems + [f"a rule in CEL, not checked here: {path}" for path in celled(thing, schema)]


def celled(value, schema, path="$"):
    """Where the object gives a field whose schema has rules in CEL."""
    found = [path] if "x-kubernetes-validations" in schema else []
    if isinstance(value, dict):
        for key, one in value.items():
            if isinstance(below := schema.get("properties", {}).get(key), dict):
                found += celled(one, below, f"{path}.{key}")
    elif isinstance(value, list):
        found += [place for k, one in enumerate(value) for place in celled(one, schema.get("items", {}), f"{path}[{k}]")]
    return found


def refused(thing):
    """What KubeRay's operator itself refuses, with the feature gates off that are off by default.

    Each rule is one of ray-operator/controllers/ray/utils/validation.go of KubeRay 1.7; the function is named beside it.
    """
    kind, spec, found = thing["kind"], thing["spec"], []
    longest = {"RayJob": 47, "RayCluster": 53, "RayCronJob": 36}[kind]  # …Metadata: room for what is appended to the name
    name = thing["metadata"]["name"]
    if len(name) > longest or not re.fullmatch(LABEL, name):
        found.append(f"name {name}")
    if kind == "RayCronJob":  # ValidateRayCronJobSpec
        fields = spec["schedule"].split()
        if len(fields) != 5 or "TZ" in spec["schedule"]:
            found.append("schedule")
        if spec.get("timeZone", "Etc/UTC") not in zoneinfo.available_timezones():
            found.append("timeZone")
        spec = spec["jobTemplate"]
    if kind != "RayCluster":
        found += _refused_job(spec)
        spec = spec.get("rayClusterSpec", {})
    return found + _refused_cluster(spec)


def _refused_job(spec):
    """ValidateRayJobSpec and validateDeletionConfiguration."""
    shut, mode = spec.get("shutdownAfterJobFinishes", False), spec.get("submissionMode", "K8sJobMode")
    cluster = spec.get("rayClusterSpec")
    rules = {
        "suspend needs shutdownAfterJobFinishes": spec.get("suspend", False) and not shut,
        "ttlSecondsAfterFinished is negative": spec.get("ttlSecondsAfterFinished", 0) < 0,
        "ttlSecondsAfterFinished needs shutdownAfterJobFinishes": spec.get("ttlSecondsAfterFinished", 0) > 0 and not shut,
        "deletionStrategy: not used here": "deletionStrategy" in spec,
        "neither rayClusterSpec nor clusterSelector": cluster is None and not spec.get("clusterSelector"),
        "backoffLimit with clusterSelector": bool(spec.get("clusterSelector")) and spec.get("backoffLimit", 0) > 0,
        "backoffLimit in InteractiveMode": mode == "InteractiveMode" and spec.get("backoffLimit", 0) > 0,
        "submissionMode": mode not in ("K8sJobMode", "HTTPMode", "SidecarMode", "InteractiveMode"),
        "SidecarMode with a submitter": mode == "SidecarMode" and any(key.startswith("submitter") for key in spec),
        "activeDeadlineSeconds": spec.get("activeDeadlineSeconds", 1) <= 0,
        "preRunningDeadlineSeconds": spec.get("preRunningDeadlineSeconds", 1) <= 0,
        "backoffLimit is negative": spec.get("backoffLimit", 0) < 0,
        "runtimeEnvYAML": not isinstance(yaml.safe_load(spec.get("runtimeEnvYAML", "{}")), dict),
        "Kubernetes' own tokens in a RayJob": (cluster or {}).get("authOptions", {}).get("enableK8sTokenAuth", False),
    }
    return [rule for rule, broken in rules.items() if broken]


def _refused_cluster(spec):
    """ValidateRayClusterSpec, validateRayGroupResources, validateRayGroupLabels, validateWorkerGroupIdleTimeout."""
    scaler, scaled = spec.get("autoscalerOptions", {}), spec.get("enableInTreeAutoscaling", False)
    groups = spec.get("workerGroupSpecs", [])
    found = [f"{gate}: its feature gate" for gate in ("networkPolicy", "tlsOptions", "historyServerOptions") if gate in spec]
    found += ["gcsFaultToleranceOptions: not used here"] if "gcsFaultToleranceOptions" in spec else []
    for group in [spec["headGroupSpec"], *groups]:
        started, pod = group.get("rayStartParams", {}), group["template"]["spec"]
        named = {variable["name"] for variable in pod["containers"][0].get("env", [])} if pod["containers"] else set()
        rules = {
            "no container": not pod["containers"],
            "resources twice": {"num-cpus", "num-gpus", "memory", "resources"} & set(started) and group.get("resources"),
            "labels as a start parameter": "labels" in started,
            "restartPolicy under v2": scaler.get("version") == "v2" and pod.get("restartPolicy", "Never") != "Never",
            "autoscaler's version twice": "version" in scaler and "RAY_enable_autoscaler_v2" in named,
            "Redis without its options": bool({"RAY_REDIS_ADDRESS", "REDIS_USERNAME"} & named),
        }
        found += [rule for rule, broken in rules.items() if broken]
    for group in groups:
        least, most = group.get("minReplicas", 0), group.get("maxReplicas", 2**31 - 1)
        rules = {
            "minReplicas and maxReplicas": not 0 <= least <= most,
            "no limits without autoscaling": not scaled and not {"minReplicas", "maxReplicas"} <= set(group),
            "a suspended group under autoscaling": scaled and group.get("suspend", False),
            "idleTimeoutSeconds of a group needs v2": "idleTimeoutSeconds" in group and scaler.get("version") != "v2",
        }
        found += [f"{group['groupName']}: {rule}" for rule, broken in rules.items() if broken]
    if scaler.get("idleTimeoutSeconds", 0) < 0 or "KUBERAY_GEN_AUTOSCALER_START_CMD" in str(scaler.get("env")):
        found.append("autoscalerOptions")
    if spec.get("authOptions", {}).get("mode") == "token":
        version = re.fullmatch(r"(\d+)\.(\d+)(\.\d+)?", str(spec.get("rayVersion", "")))
        if version is None or (int(version[1]), int(version[2])) < (2, 52):
            found.append("a token needs rayVersion 2.52 or later")
    return found
