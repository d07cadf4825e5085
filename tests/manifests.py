"""The kustomizations of cluster/kubernetes, rendered with just what they use of kustomize; kubectl renders the same."""

import json
import re
from pathlib import Path

import yaml

REPOSITORY = Path(__file__).resolve().parents[1]
CLUSTER = REPOSITORY / "cluster"
KUBERNETES = CLUSTER / "kubernetes"
KUSTOMIZATIONS = [KUBERNETES / "base", *sorted(path for path in (KUBERNETES / "overlays").iterdir())]
RAY_KINDS = {"RayJob", "RayCluster", "RayCronJob"}


class _Strict(yaml.SafeLoader):
    """A key that stands twice is an error, as it is for a strict API server; PyYAML takes the last."""

    def construct_mapping(self, node, deep=False):
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        if len(keys) > len(set(keys)):
            raise ValueError(f"a key stands twice: {keys}")
        return super().construct_mapping(node, deep)


def documents(text):
    """The objects of a YAML file; nothing is shared between places that an anchor names, so each can be changed alone."""
    return [json.loads(json.dumps(document)) for document in yaml.load_all(text, _Strict) if document is not None]


def shipped():
    """Every object that the folder ships, by where it comes from: (kustomization or file, object)."""
    rendered = [(folder.name, thing) for folder in KUSTOMIZATIONS for thing in render(folder)]
    files = sorted(KUBERNETES.glob("*.yaml"))
    return rendered + [(path.name, thing) for path in files for thing in documents(path.read_text("utf-8"))]


def render(folder):
    """The objects of a kustomization. Whatever this does not know of kustomize, it refuses."""
    (content,) = documents((folder / "kustomization.yaml").read_text("utf-8"))
    known = {"apiVersion", "kind", "resources", "images", "configMapGenerator", "generatorOptions", "patches"}
    assert set(content) <= known, f"{folder}: {set(content) - known} is not rendered here"
    assert content.get("generatorOptions", {"disableNameSuffixHash": True}) == {"disableNameSuffixHash": True}
    things = []
    for resource in content["resources"]:
        path = folder / resource
        things += render(path) if path.is_dir() else documents(path.read_text("utf-8"))
    for generator in content.get("configMapGenerator", []):
        things = _generated(folder, generator, things)
    for patch in content.get("patches", []):
        _patch(patch, things)
    for image in content.get("images", []):
        assert set(image) == {"name", "newName", "newTag"}
        _rename(things, image)
    return things


def _generated(folder, generator, things):
    assert set(generator) <= {"name", "namespace", "behavior", "files"}
    metadata = {"name": generator["name"], "namespace": generator["namespace"]}
    data = {name: (folder / name).read_text("utf-8") for name in generator["files"]}
    others = [thing for thing in things if (thing["kind"], thing["metadata"]["name"]) != ("ConfigMap", generator["name"])]
    assert (len(others) < len(things)) == (generator.get("behavior") == "replace")
    return [*others, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}]


def _patch(patch, things):
    assert set(patch) == {"target", "patch"}
    assert set(patch["target"]) <= {"kind", "name"}
    (operations,) = documents(patch["patch"])
    found = [
        thing
        for thing in things
        if thing["kind"] == patch["target"]["kind"]
        and re.fullmatch(patch["target"].get("name", ".*"), thing["metadata"]["name"])
    ]
    assert found, f"{patch['target']} finds nothing"
    for thing in found:
        for operation in operations:
            _operate(thing, **operation)


def _operate(thing, op, path, value=None):
    *way, last = (part.replace("~1", "/").replace("~0", "~") for part in path.strip("/").split("/"))
    for part in way:
        thing = thing[int(part)] if isinstance(thing, list) else thing[part]
    if isinstance(thing, list):
        assert (op, last) == ("add", "-"), "of lists, only adding at the end is rendered here"
        thing.append(value)
    elif op == "remove":
        del thing[last]
    else:
        assert op == "add" or last in thing, path
        thing[last] = value


def _rename(thing, image):
    if isinstance(thing, list):
        for one in thing:
            _rename(one, image)
    elif isinstance(thing, dict):
        for key, value in thing.items():
            if key == "image" and str(value).rpartition(":")[0] == image["name"]:
                thing[key] = f"{image['newName']}:{image['newTag']}"
            else:
                _rename(value, image)


def by_name(things):
    return {(thing["kind"], thing["metadata"]["name"]): thing for thing in things}
