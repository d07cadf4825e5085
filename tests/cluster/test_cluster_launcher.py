"""The files of Ray's cluster launcher against Ray's own code, and how its autoscaler reads KubeRay's clusters."""

import copy
import importlib.util
import json
import re
from pathlib import Path

import jsonschema
import pytest
from manifests import CLUSTER, KUBERNETES, documents, render

pytestmark = pytest.mark.proof

FILES = [CLUSTER / "ray" / f"{place}.yaml" for place in ("aws", "gcp", "local")]
CLOUDS = [path for path in FILES if path.stem != "local"]


def read(path):
    (content,) = documents(path.read_text("utf-8"))
    return content


@pytest.fixture(scope="module")
def schema():
    """Ray's schema, with node types closed too: a mistyped key of one would be ignored in silence."""
    ray = Path(importlib.util.find_spec("ray").submodule_search_locations[0])
    found = json.loads((ray / "autoscaler" / "ray-schema.json").read_text("utf-8"))
    found["properties"]["provider"]["additionalProperties"] = False
    found["properties"]["available_node_types"]["patternProperties"][".*"]["additionalProperties"] = False
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_rays_schema_and_preparation_accept_them(path, schema):
    from ray.autoscaler._private.util import prepare_config, validate_config

    content = read(path)
    assert content["provider"]["type"] == path.stem
    jsonschema.validate(content, schema)
    prepared = prepare_config(copy.deepcopy(content))
    validate_config(prepared)
    types = prepared["available_node_types"]
    if path in CLOUDS:
        assert (types["gpu"]["min_workers"], types["gpu"]["max_workers"], prepared["max_workers"]) == (0, 8, 8)
        assert types["head"]["max_workers"] == 0
    else:
        assert [(one["min_workers"], one["max_workers"]) for one in types.values()] == [(2, 2)]


@pytest.mark.parametrize(
    "change",
    [
        lambda content: content.update(idle_timeout_minute=5),
        lambda content: content["provider"].update(cache_stoped_nodes=False),
        lambda content: content["available_node_types"]["gpu"].update(min_worker=0),
    ],
)
def test_that_check_can_fail(change, schema):
    content = read(CLUSTER / "ray" / "aws.yaml")
    change(content)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(content, schema)


@pytest.mark.parametrize("path", CLOUDS, ids=lambda path: path.stem)
def test_the_head_takes_no_work_and_says_how_many_gpus_can_be_brought(path):
    content = read(path)
    head, gpu = (content["available_node_types"][name] for name in ("head", "gpu"))
    assert content["head_node_type"] == "head"
    assert head["resources"] == {"CPU": 0, "autoscaled_gpus": gpu["max_workers"] * gpu["resources"]["GPU"]}
    assert gpu["min_workers"] == 0
    assert content["docker"]["head_image"].rpartition("/")[2].startswith("tempscale-cpu:")
    assert content["docker"]["worker_image"].rpartition("/")[2].startswith("tempscale-cuda:")


def test_machines_of_aws_fit_the_parameters_of_ec2():
    """botocore brings EC2's model: what RunInstances takes, and nothing else."""
    from botocore.loaders import create_loader
    from botocore.model import ServiceModel
    from botocore.validate import ParamValidator

    shape = ServiceModel(create_loader().load_service_model("ec2", "service-2")).operation_model("RunInstances").input_shape

    def wrong(config):
        # What Ray adds itself.
        return ParamValidator().validate({**config, "MinCount": 1, "MaxCount": 1}, shape).generate_report()

    for node in read(CLUSTER / "ray" / "aws.yaml")["available_node_types"].values():
        assert wrong(node["node_config"]) == ""
        assert node["node_config"]["MetadataOptions"]["HttpTokens"] == "required"
        assert all(disk["Ebs"]["Encrypted"] for disk in node["node_config"]["BlockDeviceMappings"])
    assert "MarketTyp" in wrong({"InstanceMarketOptions": {"MarketTyp": "spot"}})


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_ray_starts_with_a_token_and_nothing_secret_is_written(path):
    content, text = read(path), path.read_text("utf-8")
    for commands in (content["head_start_ray_commands"], content["worker_start_ray_commands"]):
        stop, start = commands
        assert stop == "ray stop"
        assert re.search(r"RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH=~/\.tempscale/ray_token ray start ", start)
        assert "set -a; . ~/.tempscale/environment; set +a;" in start
    assert "--dashboard-host=127.0.0.1" in content["head_start_ray_commands"][1]
    assert "--autoscaling-config=~/ray_bootstrap_config.yaml" in content["head_start_ray_commands"][1]
    assert content["file_mounts"] == {"~/.tempscale": "~/.tempscale"}
    assert not re.search(r"RAY_AUTH_TOKEN=|AWS_SECRET|HF_TOKEN|gcp_credentials|WEBHOOK", text)
    assert "--privileged" not in text
    assert {"--cap-drop ALL", "--security-opt no-new-privileges"} <= set(content["docker"]["run_options"])


def clusters():
    yield "standing", documents((KUBERNETES / "raycluster.yaml").read_text("utf-8"))[0]
    for name in ("cpu", "eks", "gke"):
        job = next(thing for thing in render(KUBERNETES / "overlays" / name) if thing["kind"] == "RayJob")
        yield name, {"metadata": job["metadata"], "spec": job["spec"]["rayClusterSpec"]}


@pytest.mark.parametrize(("name", "cluster"), clusters())
def test_rays_autoscaler_reads_kuberays_clusters(name, cluster):
    """What the autoscaler in the head's pod makes of the RayCluster, by its own code."""
    from ray.autoscaler._private.kuberay import autoscaling_config
    from ray.autoscaler._private.util import validate_config

    config = autoscaling_config._derive_autoscaling_config_from_ray_cr(cluster)
    validate_config(config)
    head, group = (
        config["available_node_types"]["headgroup"],
        config["available_node_types"]["cpu" if name == "cpu" else "gpu"],
    )
    assert head["resources"] == {"CPU": 0, "memory": 16 << 30} | ({} if name == "cpu" else {"autoscaled_gpus": 8})
    assert group["resources"] == {"CPU": 6, "memory": 24 << 30} | ({} if name == "cpu" else {"GPU": 1})
    assert (group["min_workers"], group["max_workers"], config["idle_timeout_minutes"]) == (0, 8, 5)
