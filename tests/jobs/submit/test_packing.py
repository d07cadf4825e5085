"""What travels with a job, what stays, and the line that starts it there."""

import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tempscale_jobs.errors import UsageError
from tempscale_jobs.submit import packing
from tempscale_jobs.submit.command import Submission

NIGHT = "2026-11-22"


def packed(folder, **files):
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return packing.pack(folder)


def test_secrets_and_what_is_no_input_stay(tmp_path, monkeypatch):
    stay = [
        ".env", ".env.local", ".netrc", ".aws/credentials", ".ssh/id_rsa", ".git/config", "server.pem", "sub/tls.KEY",
        "id_rsa", "my-credentials.json", "environment", "sub/prod.env", "client_secret.json",
        "sub/.hidden", "venv/a.py", "sub/__pycache__/a.pyc", "runs/old/run.json",
        "node_modules/x.js", "service.json", "token.txt",
    ]  # fmt: skip
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "service.json"))
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "token.txt"))
    travel = ["nightly.toml", "sub/texts.jsonl", "keys.csv", "environment.md", "runs.toml"]
    found = packed(tmp_path, **dict.fromkeys([*stay, *travel], "some text"))
    assert sorted(found.files) == sorted(travel)
    with found.staged() as staged:
        links = [path for path in Path(staged).rglob("*") if path.is_file()]
        assert sorted(str(path.relative_to(staged)) for path in links) == sorted(travel)
        assert {path.read_text() for path in links} == {"some text"}
    assert not Path(staged).exists()


def test_files_of_keys_stay_by_their_names(tmp_path):
    keys = [
        "token.txt", "TOKEN", "hf_token", "hub-token.txt", "api.token", "kubeconfig", "kubeconfig.yaml", "prod.kubeconfig",
        "service-account.json", "service-account-prod.json", "service_account.json", "sub/serviceaccount.json",
        "credentials", "passwords.txt", "key.ppk", "store.jks", "vault.kdbx",
    ]  # fmt: skip
    found = packed(tmp_path, **dict.fromkeys([*keys, "tokenizer.json", "tokens.jsonl"], "x"))
    assert sorted(found.files) == ["tokenizer.json", "tokens.jsonl"]
    assert sorted(found.left_out) == sorted(keys)


@pytest.mark.parametrize("text", [
    "-----BEGIN RSA PRIVATE KEY-----\nMIIE", "-----BEGIN PRIVATE KEY-----", '{"type": "x", "private_key": "y"}',
    "apiVersion: v1\nkind: Config\nclusters: []", "hf_" + "a1B2" * 9, "key = AKIA" + "ABCD" * 4, "ghp_" + "a" * 36,
    "sk-" + "a" * 40,
])  # fmt: skip
def test_files_that_hold_keys_stay_whatever_their_names(tmp_path, text):
    (tmp_path / "bytes.bin").write_bytes(b"\xff\xfe")
    found = packed(
        tmp_path, **{"notes.txt": text, "night.toml": 'out = "x"', "texts.jsonl": "kind: Configuration of a river"}
    )
    assert found.left_out == ("notes.txt",)
    assert sorted(found.files) == ["bytes.bin", "night.toml", "texts.jsonl"]


def test_large_files_are_data(tmp_path):
    found = packed(tmp_path, **{"corpus.txt": "a river\n" * 10_000 + "-----BEGIN PRIVATE KEY-----"})
    assert list(found.files) == ["corpus.txt"]


def test_what_ignore_files_name_stays(tmp_path):
    files = dict.fromkeys(("a.txt", "a.log", "data/big.bin", "sub/deep/b.log", "sub/keep.log", "sub/c.tmp", "d/data/x"), "1")
    found = packed(tmp_path, **files, **{".gitignore": "*.log\n/data/\n", "sub/.rayignore": "*.tmp\n!keep.log\n"})
    assert sorted(found.files) == ["a.txt", "d/data/x"]
    assert "data/" in found.left_out


@pytest.mark.skipif(shutil.which("git") is None, reason="the rules are git's own")
@pytest.mark.parametrize("rules", [
    ["*.log", "!keep.log"], ["/data/"], ["data/*", "!data/a.txt"], ["**/deep"], ["sub/**/*.txt"], ["a.*", "# data/"],
    ["sub/deep/"], ["*.txt", "!sub/a.txt", "sub/deep"], ["\\#a", "d?ta", "[ks]*.log"],
])  # fmt: skip
def test_what_stays_is_what_git_ignores(tmp_path, rules):
    places = ("", "data/", "sub/", "sub/deep/", "sub/deep/data/")
    files = {f"{place}{name}": "1" for place in places for name in ("a.txt", "a.log", "keep.log", "#a")}
    found = packed(tmp_path, **files, **{".gitignore": "\n".join(rules)})
    git = functools.partial(subprocess.run, cwd=tmp_path, check=True, capture_output=True, text=True)
    git(["git", "init", "--quiet"])
    kept = git(["git", "ls-files", "-z", "--others", "--exclude-standard"]).stdout.split("\0")
    assert {*found.files, ".gitignore", ""} == {*kept}
    assert 0 < len(found.files) < len(files)


def test_a_rule_that_git_does_not_know_is_a_sentence(tmp_path):
    with pytest.raises(UsageError, match=r"\.gitignore.*'!'"):
        packed(tmp_path, **{"a.txt": "1", ".gitignore": "!\n"})


def test_links_to_files_travel_and_links_to_folders_stay(tmp_path):
    """A ConfigMap of Kubernetes is a link into a hidden folder."""
    found = packed(tmp_path, **{"..2026/nightly.toml": "seed = 1"})
    (tmp_path / "..data").symlink_to("..2026")
    (tmp_path / "nightly.toml").symlink_to("..data/nightly.toml")
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "broken").symlink_to("nowhere")
    found = packing.pack(tmp_path)
    assert set(found.files) == {"nightly.toml"}
    with found.staged() as staged:
        assert (Path(staged) / "nightly.toml").read_text() == "seed = 1"


def entrypoint(packed=None, *arguments):
    return Submission("audit", arguments, NIGHT, "x", packed, False).entrypoint


def shell(command, path):
    environment = os.environ | {"PYTHONPATH": str(path), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    return subprocess.run(
        ["sh", "-c", command], env=environment, capture_output=True, text=True, cwd=path.parent, timeout=60
    )


def test_where_the_package_is_not_there_the_job_does_not_end_as_a_failed_gate(tmp_path):
    package = tmp_path / "modules" / "tempscale_jobs"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    for command in (entrypoint(None, "x.toml"), entrypoint(packing.Packed(tmp_path, {}, ()), "x.toml")):
        assert shell(command, tmp_path / "modules").returncode == 2  # No tempscale_jobs.cli.app.
    (package / "cli").mkdir()
    (package / "cli" / "app.py").write_text("import a_library_that_is_not_there")
    assert shell(entrypoint(None, "x.toml"), tmp_path / "modules").returncode == 2


def test_the_job_runs_where_its_files_are_and_ends_with_the_command_s_code(tmp_path):
    package, files = tmp_path / "modules" / "tempscale_jobs", tmp_path / "modules" / packing.FOLDER
    (package / "cli").mkdir(parents=True)
    (files / "tempscale_jobs").mkdir(parents=True)
    (files / "tempscale_jobs" / "__init__.py").write_text("raise SystemExit('the wrong package')")
    (files / "a b.toml").write_text("")
    for name in ("__init__.py", "cli/__init__.py", "cli/app.py"):
        (package / name).write_text("")
    (package / "__main__.py").write_text("import os, sys; print(os.listdir(), sys.argv[1:]); sys.exit(1)")
    run = shell(entrypoint(packing.Packed(tmp_path, {}, ()), "a b.toml", "it's"), tmp_path / "modules")
    assert run.returncode == 1, run.stderr
    assert "a b.toml" in run.stdout.partition("]")[0]
    assert run.stdout.strip().endswith("""['audit', 'a b.toml', "it's"]""")
