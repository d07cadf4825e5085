"""docs/vectors.md: each recipe of «Bring your vectors» runs as it stands, and all of them give the same tables."""

import contextlib
import re
import shlex
from pathlib import Path

import postgres_server
import pytest
import stored_tables
from command_line import in_process
from whole_run import digests

pytestmark = [pytest.mark.proof, pytest.mark.usefixtures("ray_session")]

PAGE = (Path(__file__).parents[2] / "docs" / "vectors.md").read_text("utf-8")
SECTION = PAGE.partition("## Bring your vectors")[2].partition("\n## ")[0]
RECIPES = re.findall(r"```(python|sql)\n(.*?)```\n\n    (tempscale [^\n]*)\n", SECTION, re.DOTALL)
NAMES = [command.rpartition("/")[2] for _, _, command in RECIPES]


@pytest.fixture(scope="module")
def yours():
    rows = stored_tables.table()
    ids = [int(name) for name in rows.column("id").to_pylist()]
    return {"ids": ids, "texts": rows.column("text").to_pylist(), "vectors": stored_tables.matrix(rows)}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("place")


def run(number, folder, yours, request):
    """Run a recipe, and return the digests of its tables."""
    language, code, command = RECIPES[number]
    with contextlib.chdir(folder), pytest.MonkeyPatch.context() as patch:
        if language == "python":
            exec(compile(code, "vectors.md", "exec"), yours)
        else:
            database = request.getfixturevalue("database")
            postgres_server.execute(database, *filter(str.strip, code.split(";")))
            insert(database, yours)
            patch.setenv("PGPASSWORD", postgres_server.SECRET)
            command = command.replace("db.example.com/app", database.rpartition("@")[2])
        code, _, err = in_process(*shlex.split(command)[1:], "--workers", "1")
    assert code in (0, 1), err
    out = folder / "runs" / NAMES[number]
    return {name: value for name, value in digests(out).items() if name.startswith("tables/")}


def insert(database, yours):
    import psycopg

    with psycopg.connect(database) as connection:
        for row in zip(yours["ids"], yours["texts"], map(str, yours["vectors"].tolist()), strict=True):
            connection.execute("insert into documents values (%s, %s, %s)", row)


@pytest.fixture(scope="module")
def expected(place, yours, request):
    return run(0, place, yours, request)


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_of_four_lines_runs_and_gives_the_tables_of_parquet(place, yours, expected, request, name):
    assert len(RECIPES) == 6
    number = NAMES.index(name)
    lines = [*filter(None, RECIPES[number][1].splitlines()), RECIPES[number][2]]
    assert len(lines) <= (6 if name == "qdrant" else 4)  # Qdrant's collections are made in several steps.
    assert expected
    assert number == 0 or run(number, place, yours, request) == expected
