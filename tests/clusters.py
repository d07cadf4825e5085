"""What needs machines: the job of cluster/slurm on a real Slurm, and the image of cluster/Dockerfile on a cluster of Ray.

Two machines of each on this one, with networks and processes of their own. `make cluster`, as root on Debian with `apt-get
install slurm-wlm munge iproute2 tini mmdebstrap buildah`, takes half an hour; `python tests/clusters.py image` or `… slurm`
runs one of the two. What ran is written to benchmarks/results/cluster.json, and what could not be done with the command that
failed.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RECORD = ROOT / "benchmarks" / "results" / "cluster.json"
JOB = ROOT / "cluster" / "slurm" / "tempscale.sbatch"
NEEDED = {
    "slurm": ("slurmctld", "slurmd", "sbatch", "munged", "ip", "nsenter", "unshare", "tini"),
    "image": ("mmdebstrap", "buildah", "ip", "nsenter", "unshare", "tini"),
}
NETWORK = "10.99.0"
AUDIT = """
[corpus]
source = "docstrings:scipy"
sample = 300
[embedding]
max_length = 128
shard_texts = 16
"""
SECONDS = 900
"""The longest that one job may take."""
CONFIGURATION = """ClusterName=here
SlurmctldHost={host}({network}.254)
AuthType=auth/munge
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
SlurmctldPort=16817
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/controller.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/controller.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
MailProg=/bin/true
NodeName=n1 NodeHostname={host} NodeAddr={network}.1 Port=17001 CPUs=2 State=UNKNOWN
NodeName=n2 NodeHostname={host} NodeAddr={network}.2 Port=17002 CPUs=2 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES State=UP MaxTime=INFINITE
"""


BASE = ("python3", "python3-pip", "python3-venv", "python-is-python3", "ca-certificates")
"""Debian's packages that stand for the image of Python that the Dockerfile begins with."""
IMAGE = "localhost/tempscale"
USER = 1000
"""Of the image."""


class Impossible(Exception):
    """What this machine cannot do."""


def told(*command: str, check: bool = True, **how: object) -> str:
    """The output of a command; one that fails is named."""
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SECONDS, **how)
    if check and run.returncode:
        raise Impossible(f"{' '.join(command)}: {(run.stderr or run.stdout).strip()[-300:]}")
    return run.stdout


@contextmanager
def two_networks() -> Iterator[list[str]]:
    """Two network namespaces with an address each, which see one another and this machine."""
    names = [f"tempscale{k}" for k in (1, 2)]
    told("ip", "link", "add", "tempscale0", "type", "bridge")
    try:
        told("ip", "addr", "add", f"{NETWORK}.254/24", "dev", "tempscale0")
        told("ip", "link", "set", "tempscale0", "up")
        for k, name in enumerate(names, 1):
            told("ip", "netns", "add", name)
            told("ip", "link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", name)
            told("ip", "link", "set", name, "master", "tempscale0", "up")
            told("ip", "-n", name, "addr", "add", f"{NETWORK}.{k}/24", "dev", "eth0")
            for device in ("eth0", "lo"):
                told("ip", "-n", name, "link", "set", device, "up")
            told("ip", "-n", name, "route", "add", "default", "via", f"{NETWORK}.254")
        yield names
    finally:
        for name in names:
            told("ip", "link", "del", name, check=False)
            told("ip", "netns", "del", name, check=False)
        told("ip", "link", "del", "tempscale0", check=False)


def apart(network: str) -> list[str]:
    """What begins a command on a machine: its network, processes of its own, since `ray stop` ends all that it sees, and a
    first one that collects the ended.
    """
    return f"nsenter --net=/run/netns/{network} unshare --pid --fork --mount-proc --kill-child tini --".split()


@contextmanager
def slurm(folder: Path) -> Iterator[dict[str, str]]:
    """A Slurm of two machines; yields the environment in which its commands find it, and tempscale."""
    host = told("hostname", "-s").strip()
    (folder / "state").mkdir()
    configuration = folder / "slurm.conf"
    configuration.write_text(CONFIGURATION.format(folder=folder, host=host, network=NETWORK))
    places = [str(Path(sys.executable).parent), os.environ["PATH"]]
    environment = os.environ | {"SLURM_CONF": str(configuration), "PATH": os.pathsep.join(places), "HOME": str(folder)}
    environment = {name: value for name, value in environment.items() if not name.startswith("RAY_")}
    if not subprocess.run(["pgrep", "munged"], capture_output=True, check=False).stdout:
        told("service", "munge", "start")
    with two_networks() as networks, ExitStack() as machines:
        try:
            told("slurmctld", env=environment)
            for k, network in enumerate(networks, 1):
                machine = subprocess.Popen([*apart(network), "slurmd", "-D", "-N", f"n{k}"], env=environment)
                machines.callback(machine.wait)
                machines.callback(machine.kill)
            until(
                lambda: "idle" in told("sinfo", "--noheader", "--format=%T", env=environment), 60, "both machines are idle"
            )
            yield environment
        finally:
            told("scontrol", "shutdown", check=False, env=environment)
            told("kill", (folder / "controller.pid").read_text().strip(), check=False)


def until(holds, seconds: float, what: str) -> None:
    """Wait until something holds."""
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            raise Impossible(f"not within {seconds:.0f} seconds: {what}")
        time.sleep(0.5)


class Job:
    """A job of Slurm that runs one command of tempscale on both machines."""

    def __init__(self, folder: Path, environment: dict[str, str], name: str) -> None:
        self.out, self._environment, self._folder = folder / name, environment, folder
        (folder / "audit.toml").write_text(AUDIT)
        self.command = ["audit", str(folder / "audit.toml"), "--out", str(self.out)]
        self.number = ""

    def submit(self) -> None:
        """Queue it."""
        line = ["sbatch", "--parsable", "--nodes=2", f"--output={self.out}-%j.log", str(JOB), *self.command]
        self.number = told(*line, env=self._environment, cwd=self._folder).strip()

    def tell(self, *command: str) -> None:
        """Give Slurm a command about it."""
        told(*command, self.number, env=self._environment)

    def fact(self, name: str) -> str:
        """What Slurm knows of it."""
        words = told("scontrol", "--oneliner", "show", "job", self.number, env=self._environment).split()
        return next(word.partition("=")[2] for word in words if word.startswith(f"{name}="))

    def end(self) -> tuple[str, str]:
        """Wait for its end; its state, its exit code and the signal that ended it."""
        until(lambda: self.fact("JobState") not in ("PENDING", "RUNNING", "COMPLETING"), SECONDS, f"job {self.number} ends")
        return self.fact("JobState"), self.fact("ExitCode")

    @property
    def parts(self) -> dict[Path, int]:
        """The parts of texts/ with their times of writing."""
        return {file: file.stat().st_mtime_ns for file in self.out.glob("texts/*/*/part-*.parquet")}

    def part_by_part(self) -> dict[Path, int]:
        """Wait until some of the texts are embedded; the parts."""
        until(lambda: len(self.parts) >= 6 or (self.out / "run.json").exists(), SECONDS, "six parts of texts/")
        return self.parts

    @property
    def record(self) -> dict[str, object]:
        """What its run.json says."""
        return json.loads((self.out / "run.json").read_text())


def jobs(folder: Path, environment: dict[str, str]) -> list[dict[str, object]]:
    """Whole, requeued while it embeds, and cancelled while it embeds and submitted again."""
    told(str(Path(sys.executable).parent / "ray"), "get-auth-token", "--generate", env=environment)
    found = []
    for name in ("whole", "requeued", "cancelled"):
        job, begun = Job(folder, environment, name), time.monotonic()
        job.submit()
        before = {} if name == "whole" else job.part_by_part()
        if name == "requeued":
            job.tell("scontrol", "requeue")
        if name == "cancelled":
            job.tell("scancel")
            ended = job.end()
            assert ended[0] == "CANCELLED", ended
            before = job.parts
            job.submit()
        state, code = job.end()
        if (state, code) != ("COMPLETED", "0:0"):
            log = max(folder.glob(f"{name}-*.log"), key=lambda path: path.stat().st_mtime).read_text()
            raise Impossible(f"the job {name} ended as {state} {code}: {log[-1500:]}")
        assert job.record["corpus"]["analysed"] == 300
        kept = {file: job.parts[file] for file in before}
        assert kept == before, "a finished part was written again"
        found.append(
            {"what": f"slurm, {name}", "seconds": round(time.monotonic() - begun), "parts_kept": len(before),
             "restarts": int(job.fact("Restarts")), "run": job.record["run"], "versions": job.record["versions"]}
        )  # fmt: skip
        print(json.dumps(found[-1]), flush=True)
    return found


def of_slurm(folder: Path) -> list[dict[str, object]]:
    """The three jobs under Slurm."""
    with slurm(folder) as environment:
        return jobs(folder, environment)


def build(folder: Path) -> None:
    """Build the image of cluster/Dockerfile.

    What pip finds of torch on this machine is offered beside the index that the Dockerfile names, which may be out of reach.
    """
    base, wheels, settings = folder / "base.tar", folder / "wheels", folder / "pip.conf"
    told("mmdebstrap", "--variant=minbase", f"--include={','.join(BASE)}", "bookworm", str(base))
    container = told("buildah", "from", "scratch").strip()
    told("buildah", "add", container, str(base), "/")
    # As in an image of Python, pip may install beside Debian's packages.
    told("buildah", "run", container, "rm", "/usr/lib/python3.11/EXTERNALLY-MANAGED")
    told("buildah", "commit", "--rm", container, f"{IMAGE}-base")
    digest = told("buildah", "inspect", "--type", "image", "--format", "{{.FromImageDigest}}", f"{IMAGE}-base").strip()
    torch = next(line for line in (ROOT / "constraints.txt").read_text().splitlines() if line.startswith("torch=="))
    told(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(wheels), torch)
    settings.write_text("[global]\nfind-links = /wheels\ncert = /etc/ssl/certs/ca-certificates.crt\nretries = 1\n")
    volumes = {wheels: "/wheels", settings: "/etc/pip.conf", Path("/etc/ssl/certs"): "/etc/ssl/certs"}
    told(
        "buildah", "bud", "--file", str(ROOT / "cluster" / "Dockerfile"), "--tag", IMAGE, "--build-arg", "LIST=demo",
        "--ignorefile", str(ROOT / "cluster" / "Dockerfile.dockerignore"),
        "--build-arg", f"BASE={IMAGE}-base@{digest}", *(f"--volume={a}:{b}:ro" for a, b in volumes.items()), str(ROOT),
    )  # fmt: skip


def of_image(folder: Path) -> list[dict[str, object]]:
    """An audit that is submitted from the image to a head and a worker of it."""
    os.environ |= {"BUILDAH_ISOLATION": "chroot", "STORAGE_DRIVER": "vfs", "RAY_AUTH_MODE": "token"}
    os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    begun = time.monotonic()
    build(folder)
    seconds, head = round(time.monotonic() - begun), f"{NETWORK}.1"
    print(f"built in {seconds} s", flush=True)
    shared, containers = folder / "shared", dict[str, str]()
    shared.mkdir()
    (shared / "audit.toml").write_text(AUDIT)
    shutil.chown(shared, USER)
    nobody = folder / "resolv.conf"
    nobody.write_text("nameserver 127.0.0.1\n")  # These networks have no other: each name would be asked for in vain.

    def inside(name: str, *command: str) -> list[str]:
        """A command in a container of the image, with a /tmp of its own."""
        container = containers[name] = containers.get(name) or told("buildah", "from", IMAGE).strip()
        (own := folder / name).mkdir(exist_ok=True)
        own.chmod(0o1777)
        how = [
            f"--volume={here}:{there}"
            for here, there in {shared: "/shared", own: "/tmp", nobody: "/etc/resolv.conf"}.items()
        ]
        how += [f"--env={variable}={os.environ[variable]}" for variable in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN")]
        return ["buildah", "run", *how, container, "--", *command]

    with two_networks() as networks, ExitStack() as machines:
        roles = {
            "head": ["--head", "--port=6379", f"--node-ip-address={head}", "--dashboard-host=0.0.0.0"],
            "worker": [f"--address={head}:6379", f"--node-ip-address={NETWORK}.2"],
        }
        how = ["--block", "--num-cpus=2", f"--object-store-memory={200 << 20}"]
        for (name, role), network in zip(roles.items(), networks, strict=True):
            log = machines.enter_context((folder / f"{name}.log").open("w"))
            machine = subprocess.Popen([*apart(network), *inside(name, "ray", "start", *role, *how)], stdout=log, stderr=log)
            machines.callback(machine.wait)
            machines.callback(machine.kill)
        status = inside("status", "ray", "status", f"--address={head}:6379")
        until(lambda: "0.0/4.0 CPU" in told(*status, check=False), 600, "both machines are in the cluster")
        begun = time.monotonic()
        audit = ["audit", "/shared/audit.toml", "--out", "/shared/run"]
        line = ["tempscale", "submit", f"--address=http://{head}:8265", "--image-code", "--", *audit]
        print(told(*inside("submit", *line)), flush=True)
        record = json.loads((shared / "run" / "run.json").read_text())
        assert record["corpus"]["analysed"] == 300
        told("buildah", "rm", *containers.values())
        return [
            {"what": "image, built on Debian's packages", "seconds": seconds},
            {"what": "image, an audit submitted from it to a head and a worker of it",
             "seconds": round(time.monotonic() - begun), "run": record["run"], "versions": record["versions"]},
        ]  # fmt: skip


PARTS = {"slurm": of_slurm, "image": of_image}


def main(parts: list[str]) -> int:
    """Run what this machine can; write the record. What is not run now keeps its own."""
    record = json.loads(RECORD.read_text("utf-8")) if RECORD.exists() else {}
    well = True
    for name in parts or PARTS:
        commit = told("git", "-C", str(ROOT), "rev-parse", "HEAD").strip()
        entry: dict[str, object] = {"commit": commit, "on": time.strftime("%Y-%m-%d")}
        try:
            if absent := [program for program in NEEDED[name] if shutil.which(program) is None]:
                raise Impossible(f"not installed: {', '.join(absent)} (see the head of tests/clusters.py)")
            with tempfile.TemporaryDirectory(prefix=f"tempscale-{name}-") as folder:
                entry["done"] = PARTS[name](Path(folder))
        except Impossible as error:
            entry["not_done"] = str(error)
            print(f"{name}: not done: {error}", file=sys.stderr)
            well = False
        RECORD.write_text(json.dumps(record := record | {name: entry}, indent=1) + "\n", "utf-8")
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
