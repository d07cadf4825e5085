"""An unexpected error that comes from the same place again is not answered with «start it again»."""

import pytest

from tempscale_jobs.cli import start
from tempscale_jobs.config.audit import resolve
from tempscale_jobs.errors import AGAIN, IncompleteRun, Unexpected, UsageError
from tempscale_jobs.report.screen import Screen
from tempscale_jobs.runs.folder import UNEXPECTED
from tempscale_jobs.urls import masked

HOPELESS = "repeating will not help"


def ended(out, capsys, fault):
    """The exit code and what is printed where a command's work is `fault`."""

    def command(console):
        with start.begun(resolve({"out": str(out)}), "corpus", console):
            fault()

    code = 0
    try:
        start.answer(command)
    except BaseException as error:  # typer's.
        code = error.exit_code
    return code, capsys.readouterr().err.replace("\n", " ")


def here():
    masked(None)  # An error of ours, in our own code.


def there():
    Screen(width="wide")


def in_a_worker():
    raise Unexpected(f"a worker failed with KeyError: 'x'{AGAIN}") from KeyError('File "/x/tempscale/y.py", line 3')


@pytest.mark.parametrize("fault", [here, in_a_worker])
def test_the_second_time_says_that_a_third_will_not_help(tmp_path, capsys, fault):
    first, second, third = (ended(tmp_path / "run", capsys, fault) for _ in range(3))
    assert [code for code, _ in (first, second, third)] == [3, 3, 3]
    assert [HOPELESS in said for _, said in (first, second, third)] == [False, True, True]
    assert AGAIN not in second[1]


def test_nothing_is_left_in_a_folder_of_other_things(tmp_path, capsys):
    (tmp_path / "letter.txt").write_text("")
    for _ in range(2):
        assert ended(tmp_path, capsys, here)[0] == 3
    assert [file.name for file in tmp_path.iterdir()] == ["letter.txt"]


def test_another_place_another_folder_or_a_run_between_begin_anew(tmp_path, capsys):
    for out, fault in ((tmp_path / "a", here), (tmp_path / "a", in_a_worker), (tmp_path / "b", in_a_worker)):
        assert HOPELESS not in ended(out, capsys, fault)[1]
    assert ended(tmp_path / "b", capsys, lambda: None)[0] == 0
    assert not (tmp_path / "b" / UNEXPECTED).exists()
    assert HOPELESS not in ended(tmp_path / "b", capsys, in_a_worker)[1]


@pytest.mark.parametrize(
    "error", [ConnectionError("gone"), OSError(28, "No space"), MemoryError(), IncompleteRun("killed"), UsageError("wrong")]
)
def test_what_may_pass_is_not_called_hopeless(tmp_path, capsys, error):
    def fault():
        raise error

    for _ in range(3):
        found, printed = ended(tmp_path / "run", capsys, fault)
        assert found == (2 if isinstance(error, UsageError) else 3)
        assert HOPELESS not in printed
    assert not (tmp_path / "run" / UNEXPECTED).exists()
