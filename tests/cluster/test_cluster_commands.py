"""Every command, configuration and image of cluster/: read by our own command line, loaded, and held to the checkout."""

import configparser
import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from command_line import UsageError, parsed
from manifests import CLUSTER, REPOSITORY, documents, shipped

pytestmark = pytest.mark.proof

HOW_TOS = sorted(CLUSTER.rglob("README.md"))
UNITS = CLUSTER / "systemd"


def strings(value):
    if isinstance(value, dict):
        for one in value.values():
            yield from strings(one)
    elif isinstance(value, list):
        for one in value:
            yield from strings(one)
    elif isinstance(value, str):
        yield value


def in_how_to(path):
    """The commands of tempscale in a how-to: in blocks, and between backquotes."""
    text = path.read_text("utf-8")
    lines = [line.strip() for line in text.splitlines() if re.match(r" {4,}\S", line)]
    quoted = re.findall(r"`((?:\S*/)?tempscale [^`]+)`", " ".join(text.split()))
    for line in [*lines, *quoted]:
        line = re.sub(r"\s+#.*", "", line).removeprefix("ExecStart=").removeprefix("sudo -u tempscale ")
        if re.match(r"(\S*/)?tempscale [a-z]+ .", line) and "…" not in line:  # More than a command's name.
            yield shlex.split(line.replace("DATE", "2026-11-22"))


def cron_line():
    (line,) = (line for line in (UNITS / "crontab").read_text("utf-8").splitlines() if re.match(r"\d", line))
    return line


def unit(name):
    found = configparser.ConfigParser(strict=False, interpolation=None)
    found.optionxform = str
    found.read(UNITS / name)
    return found


def commands():
    """Every command that cluster/ starts or teaches, by where it stands."""
    for origin, thing in shipped():
        if thing["kind"] in ("RayJob", "RayCronJob"):
            yield f"{origin}-{thing['kind']}", thing["spec"].get("jobTemplate", thing["spec"])["entrypoint"]
    for path in HOW_TOS:
        yield from ((f"{path.parent.name}-{k}", shlex.join(words)) for k, words in enumerate(in_how_to(path)))
    yield "systemd", unit("tempscale.service")["Service"]["ExecStart"]
    yield "cron", cron_line().partition("/lock ")[2]


COMMANDS = [pytest.param(shlex.split(line), id=place) for place, line in commands()]


@pytest.mark.parametrize("words", COMMANDS)
def test_commands_are_ours(words):
    for name, given in parsed(words):
        if name == "audit" and given["address"] is not None:
            assert given["address"] == "auto"


def test_that_check_can_fail_and_misses_none():
    with pytest.raises(UsageError, match="--worker"):
        parsed(shlex.split("tempscale audit nightly.toml --worker 8"))
    with pytest.raises(UsageError, match="--loud"):
        parsed(shlex.split("tempscale submit --address http://HEAD:8265 -- audit nightly.toml --loud"))
    for path in HOW_TOS:  # Each how-to has some.
        assert list(in_how_to(path)), path
    # What starts a job elsewhere than in an entry point, such as a container's command, would be missed above.
    for origin, thing in shipped():
        for text in strings(thing if thing["kind"] != "ConfigMap" else {}):
            assert not re.search(r"\btempscale (audit|submit|pairs|tune)\b", text) or text.startswith("tempscale "), origin


def test_the_night_of_a_rayjob_can_be_added_at_the_end():
    for _, thing in shipped():
        if thing["kind"] == "RayJob":
            ((name, given),) = parsed(shlex.split(f"{thing['spec']['entrypoint']} --night 2026-11-22"))
            assert (name, given["night"], given["log_format"]) == ("audit", "2026-11-22", "json")
            # A shell of KubeRay's submitter reads it once more.
            assert not re.search(r"[$`'\"\\;&|<>*?~#{}()]", thing["spec"]["entrypoint"])


@pytest.mark.parametrize("path", sorted(CLUSTER.rglob("*.toml")), ids=lambda path: str(path.relative_to(CLUSTER)))
def test_configurations_load(path):
    from tempscale_jobs.config.audit import resolve

    data = tomllib.loads(path.read_text("utf-8"))
    settings = resolve(data | {"night": "2026-11-22"})
    assert data["out"].endswith("/{night}")
    assert settings.out == data["out"].replace("{night}", "2026-11-22")
    assert settings.gate.thresholds
    assert settings.gate.baseline == "latest"
    assert settings.record.keep_embeddings == 7
    assert settings.execution.cache.partition("/")[0] == settings.out.partition("/")[0]


def test_where_a_configuration_is_mounted_is_where_the_command_looks():
    things = [thing for _, thing in shipped()]
    job = next(thing for thing in things if thing["kind"] == "RayJob")["spec"]
    (path,) = (word for word in shlex.split(job["entrypoint"]) if word.endswith(".toml"))
    head = job["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]
    folder, _, name = path.rpartition("/")
    mounts = {mount["mountPath"]: mount["name"] for mount in head["containers"][0]["volumeMounts"]}
    volume = next(volume for volume in head["volumes"] if volume["name"] == mounts[folder])
    maps = [thing for thing in things if thing["kind"] == "ConfigMap"]
    mounted = [thing["data"] for thing in maps if thing["metadata"]["name"] == volume["configMap"]["name"]]
    assert mounted
    assert all(name in data for data in mounted)


def instructions():
    """The Dockerfile as (instruction, rest) with continued lines joined."""
    text = re.sub(r"^\s*#.*\n", "", (CLUSTER / "Dockerfile").read_text("utf-8"), flags=re.MULTILINE)
    lines = re.sub(r"\\\n", " ", text).splitlines()
    return [(line.split(None, 1)[0], line.split(None, 1)[1]) for line in lines if line.strip()]


def test_the_image_runs_as_nobody_in_particular_and_holds_no_secret():
    found = instructions()
    last = [rest for name, rest in found if name == "USER"][-1]
    assert re.fullmatch(r"([1-9]\d*):([1-9]\d*)", last)  # Kubernetes cannot tell from a name that it is not root.
    assert f"--uid {last.partition(':')[0]} " in str(found)
    assert "ENTRYPOINT" not in dict(found)  # KubeRay and Ray's launcher start commands of their own.
    assert dict(found)["CMD"] == '["tempscale", "--help"]'
    for name, rest in found:
        if name in ("ARG", "ENV"):
            assert not re.search(r"KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL|WEBHOOK", rest, re.IGNORECASE), rest
        assert "--mount=type=secret" not in rest
        assert name != "ADD"


def test_the_image_is_built_from_what_is_here_in_the_pinned_versions():
    found = instructions()
    arguments = dict(rest.split("=", 1) for name, rest in found if name == "ARG" and "=" in rest)
    assert arguments["DEVICE"] == "cpu"
    assert re.fullmatch(r"python:3\.1[1-4]-slim-bookworm", arguments["BASE"])
    pinned = dict(line.split("==") for line in (REPOSITORY / "constraints.txt").read_text().split())
    assert {"torch", "boto3"} <= set(pinned)
    runs = [rest for name, rest in found if name == "RUN"]
    torch = next(rest for rest in runs if "torch" in rest and "DEVICE" in rest)
    for rest in runs:
        for install in re.findall(r"pip install[^;&]*", rest):
            assert "--no-cache-dir" in install
            assert "--no-deps" in install
            # Hashes of all but the wheel that was built a line before; those of torch are asked for by device.
            assert "--require-hashes" in install or "/tmp/build/wheel" in install or rest == torch
    assert (REPOSITORY / "requirements" / f"{arguments['LIST']}.txt").exists()
    sources = [source for name, rest in found if name == "COPY" for source in rest.split()[:-1]]
    assert sources
    ignored = (CLUSTER / "Dockerfile.dockerignore").read_text("utf-8").split("\n")
    assert ignored[1] == "*"
    let_in = {line[1:].removesuffix("/**") for line in ignored if line.startswith("!")}
    assert let_in == {source for source in sources if (REPOSITORY / source).exists()} == set(sources)
    # What the wheel is made of is all there: the build would fail late.
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    made = project["tool"]["hatch"]
    needed = {package.split("/")[0] for package in made["build"]["targets"]["wheel"]["packages"]}
    assert needed | {project["project"]["readme"], *project["project"]["license-files"]} <= set(sources)


def test_the_images_python_lines_do_what_they_say(tmp_path):
    """The shell of the torch step, with pip replaced: which index and version each device asks for."""
    (rest,) = (rest for name, rest in instructions() if name == "RUN" and "whl/cpu" in rest)
    shutil.copy(REPOSITORY / "constraints.txt", tmp_path)
    for device, told in (
        ("cpu", "whl/cpu torch=={}+cpu"),
        ("cuda", "--require-hashes --requirement requirements/cuda.txt"),
        ("gpu", None),
    ):
        script = f'pip() {{ echo "$@"; }}; DEVICE={device}; {rest}'
        run = subprocess.run(["sh", "-c", script], cwd=tmp_path, capture_output=True, text=True)
        version = re.search(r"^torch==(.+)$", (tmp_path / "constraints.txt").read_text(), re.MULTILINE)[1]
        assert run.returncode == (0 if told else 1), run.stderr
        assert told is None or run.stdout.strip().endswith(told.format(version))
        assert told is not None or "'gpu'" in run.stderr


@pytest.mark.parametrize(("base", "code"), [("python:3.11-slim@sha256:0f1e", 0), ("python:3.11-slim", 1)])
def test_an_image_without_the_digest_of_its_base_is_not_built(base, code):
    first = next(rest for name, rest in instructions() if name == "RUN")
    run = subprocess.run(["sh", "-c", first], env={"BASE": base}, capture_output=True, text=True)
    assert run.returncode == code
    assert ("BASE must name the digest" in run.stderr) == bool(code)


@pytest.mark.soak
def test_the_image_lists_the_packages_in_it(tmp_path):
    """The command of the Dockerfile, on the environment that runs the tests."""
    every = " ".join(rest for name, rest in instructions() if name == "RUN")
    (words,) = re.findall(r"/tmp/sbom/bin/(cyclonedx-py environment .*?--output-file) /opt/tempscale/sbom.cdx.json", every)
    file, program = tmp_path / "sbom.cdx.json", Path(sys.prefix) / "sbom" / "bin" / words.split()[0]
    if not program.exists():
        pytest.skip(f"{program} is absent: `make test` installs it, apart, as the image does")
    subprocess.run([program, *words.split()[1:], file, sys.executable], check=True, capture_output=True)
    found = {own["name"]: own["version"] for own in json.loads(file.read_text())["components"]}
    assert all(found[name] == metadata.version(name) for name in ("ray", "torch"))
    assert len(found) > 100


def test_units_and_cron_line():
    service, timer = unit("tempscale.service")["Service"], unit("tempscale.timer")["Timer"]
    assert service["User"] != "root"
    assert service["Restart"] == "on-failure"
    assert service["RestartPreventExitStatus"] == "1"  # A failed gate stays one.
    assert service["NoNewPrivileges"] == "yes"
    assert "UTC" in timer["OnCalendar"]
    assert not re.search(r"(?<!\\)%", cron_line())  # cron would end the command there
    assert len(re.match(r"(\S+\s+){5}tempscale\s", cron_line())[0].split()) == 6
    command = cron_line().split("tempscale", 1)[1]
    assert subprocess.run(["sh", "-n", "-c", command], capture_output=True).returncode == 0
    assert "flock -n" in command


def test_systemd_accepts_the_units(tmp_path):
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    for path in (UNITS / "tempscale.service", UNITS / "tempscale.timer"):
        # The program need not be there, as it is not here.
        text = path.read_text("utf-8").replace("/opt/tempscale/bin/tempscale", shutil.which("true"))
        (tmp_path / path.name).write_text(text)
    run = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", tmp_path / "tempscale.service", tmp_path / "tempscale.timer"],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (run.returncode, run.stderr) == (0, "")


@pytest.mark.parametrize("path", HOW_TOS, ids=lambda path: path.parent.name)
def test_how_tos_name_files_that_are_there(path):
    """Their links are followed by tests/docs/test_docs.py."""
    for name in re.findall(r"`(?:\.\./)*((?:base|overlays|cluster)/[\w./-]+\.\w+)`", path.read_text("utf-8")):
        assert (path.parent / name).exists() or (REPOSITORY / name).exists(), name


def test_every_file_is_in_a_how_to():
    told = " ".join(path.read_text("utf-8") for path in HOW_TOS) + str(
        [documents(path.read_text("utf-8")) for path in CLUSTER.rglob("*.yaml")]
    )
    for path in CLUSTER.rglob("*"):
        if path.is_file() and path.name != "README.md" and "__pycache__" not in path.parts:
            assert path.name in told, path


def test_yaml_is_read_alike_by_all():
    """No word that one reader of YAML takes for a truth value and another for text."""
    for path in CLUSTER.rglob("*.yaml"):
        plain = [
            token for token in yaml.scan(path.read_text("utf-8")) if isinstance(token, yaml.ScalarToken) and token.plain
        ]
        assert not {token.value.lower() for token in plain} & {"yes", "no", "on", "off", "y", "n"}, path
