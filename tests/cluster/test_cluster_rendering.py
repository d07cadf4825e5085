"""The kustomizations of cluster/kubernetes: rendered alike by kubectl, and different only where they say so."""

import shutil
import subprocess

import pytest
from manifests import KUBERNETES, KUSTOMIZATIONS, by_name, documents, render

pytestmark = pytest.mark.proof


@pytest.mark.parametrize("folder", KUSTOMIZATIONS, ids=lambda path: path.name)
def test_kubectl_renders_the_same(folder):
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl, whose `kubectl kustomize` needs no cluster, is not installed")
    run = subprocess.run(["kubectl", "kustomize", str(folder)], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    theirs, ours = documents(run.stdout), render(folder)
    assert len(theirs) == len(ours) == len(by_name(ours))
    assert by_name(theirs) == by_name(ours)


def test_overlays_change_what_they_say_and_nothing_else():
    base, overlays = by_name(render(KUBERNETES / "base")), KUBERNETES / "overlays"
    assert {path.name for path in overlays.iterdir()} == {"cpu", "eks", "gke", "large"}
    touched = {("RayJob", "tempscale"), ("CronJob", "tempscale"), ("ConfigMap", "tempscale-configuration")}
    accounts = {key for key in base if key[0] == "ServiceAccount" and "night" not in key[1]}
    added = {"gke": {("NetworkPolicy", "metadata-server")}, "large": {("PriorityClass", "tempscale")}}
    for name in ("cpu", "eks", "gke", "large"):
        changed = by_name(render(overlays / name))
        assert {key for key in base if base[key] != changed[key]} == touched | (
            accounts if name in ("eks", "gke") else set()
        )
        assert set(changed) - set(base) == added.get(name, set())
        assert "registry.example.com" not in str(changed)
    cpu, gpu = by_name(render(overlays / "cpu"))["RayJob", "tempscale"], base["RayJob", "tempscale"]
    assert "nvidia" in str(gpu)
    assert "nvidia" not in str(cpu)
    assert "cuda" not in str(cpu)


def test_the_renderer_refuses_what_it_does_not_know(tmp_path):
    (tmp_path / "kustomization.yaml").write_text("resources: []\nnamePrefix: x-\n")
    with pytest.raises(AssertionError, match="namePrefix"):
        render(tmp_path)
    with pytest.raises(ValueError, match="twice"):
        documents("a: 1\na: 2\n")
