"""Writes docs/dev/reliability.md; counts the tests from their source, without running them. Part of docs/generate.py."""

from __future__ import annotations

import ast
import json
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

import coverage_page

ROOT = Path(__file__).resolve().parent.parent
DEFAULT_EXAMPLES = 100
"""The examples that hypothesis draws by default."""

FAULTS = (
    (
        "A worker process is killed (SIGKILL)",
        "Ray starts another; the same bytes",
        (
            "test_tile_tasks::test_a_worker_that_dies_in_the_middle_of_a_tile_changes_no_byte",
            "test_large_corpora::test_all_workers_embed_the_documents_and_cells_that_lost_them_have_the_same_bytes",
        ),
    ),
    (
        "A node's raylet is killed; a node is removed in the middle of a night",
        "its work moves to other nodes; the same bytes",
        (
            "test_jobs_api::test_a_node_that_is_taken_away_in_the_middle_of_a_night_changes_no_byte",
            "test_sick::test_a_piece_whose_worker_cannot_be_reached_is_given_out_again",
        ),
    ),
    (
        "A worker finds its GPU sick when it starts, or loses it in the middle and finds it sick then",
        "its pieces go to others; the machine is named in status.json, run.json and the report; the run ends with 3 only if "
        "no worker can start anywhere",
        (
            "test_sick::test_a_node_with_sick_cards_costs_only_its_own_work",
            "test_sick::test_a_worker_that_is_lost_in_the_middle_leaves_its_pieces_to_others",
            "test_sick::test_a_card_that_is_sick_in_the_middle_of_tiles_costs_only_its_own_work",
            "test_sick::test_no_work_is_given_up_because_of_a_card",
            "test_sick::test_where_the_first_machine_that_comes_is_sick_the_others_are_waited_for",
            "test_sick::test_where_no_worker_can_start_the_run_ends_with_the_reason",
            "test_meter::test_the_status_file_names_lost_workers_at_once",
        ),
    ),
    (
        "A node is about to leave the cluster; a node does not answer; nodes are lost again and again",
        "it gets no new piece; the wait for it ends after one to five minutes; their pieces go to others",
        (
            "test_sick::test_a_node_that_drains_is_given_no_new_piece",
            "test_sick::test_a_node_that_does_not_answer_is_not_waited_for",
            "test_sick::test_a_task_that_is_lost_with_its_node_more_often_than_ray_tries_is_given_out_again",
        ),
    ),
    (
        "A cluster begins with a head without processors",
        "waiting work makes it grow, and the head does none of it",
        ("test_sick::test_a_cluster_that_begins_with_a_head_alone_gets_nodes_because_work_waits",),
    ),
    (
        "The driver is killed, alone and with all of its processes",
        "the same command resumes; no finished part is repeated; the same bytes",
        (
            "test_killed::test_an_audit_that_is_killed_while_it_embeds_goes_on_to_the_same_bytes",
            "test_jobs_api::test_a_killed_driver_ends_with_3_and_the_next_attempt_finishes_the_same_run",
            "test_resuming::test_a_command_goes_on_without_doing_a_piece_twice",
        ),
    ),
    (
        "A task that reads, compares ids or draws a sample dies before it begins or before its result is known; the run "
        "dies while it reads",
        "the task is done again; no unit that was read is read again; the same bytes",
        (
            "test_stream::test_tasks_that_die_while_reading_are_done_again",
            "test_stream::test_tasks_of_the_exchange_that_die_are_done_again",
            "test_stream::test_the_first_copy_of_an_id_stays_though_its_unit_is_read_last",
            "test_units::test_a_run_that_is_killed_while_it_reads_goes_on_to_the_same_bytes",
        ),
    ),
    (
        "The machine's memory stays above the threshold at which Ray ends workers",
        "exit code 3 and a sentence within about a minute",
        ("test_headroom::test_full_memory_interrupts_whatever_waits",),
    ),
    (
        "Ctrl-C, SIGTERM",
        "exit code 3, a sentence, and a folder that can be resumed",
        (
            "test_faults::test_an_interrupted_run_goes_on_in_another_order_to_the_same_bytes",
            "test_ends::test_a_kill_before_a_command_begins_is_incomplete",
            "test_ends::test_a_kill_while_ray_ends_waits_for_its_end",
            "test_submit::test_an_interrupt_leaves_the_job_running_and_says_how_to_follow_and_stop_it",
        ),
    ),
    (
        "Ray's own process on the driver's machine ends",
        "reported within seconds, exit code 3",
        ("test_faults::test_the_end_of_rays_own_process_is_told_and_leaves_an_incomplete_run",),
    ),
    (
        "The head is replaced, or unreachable for a while, or lost",
        "the next submit finishes the run; a lost job is reported",
        (
            "test_jobs_api::test_a_new_head_in_the_middle_of_a_night_and_the_next_submit_finishes_the_same_run",
            "test_submit::test_a_head_may_be_away_for_a_while",
            "test_submit::test_a_head_that_stays_away_is_lost",
        ),
    ),
    (
        "The process dies between the last two writes of a run",
        "nothing is lost",
        ("test_folder::test_a_kill_between_the_last_two_steps_costs_nothing",),
    ),
    (
        "The disk is full: while shards are written, while a worker writes",
        "exit code 3, nothing half-written; the run resumes when there is room",
        (
            "test_faults::test_a_full_disk_ends_the_run_as_incomplete_and_it_goes_on_where_there_is_room",
            "test_storage::test_a_full_disk_is_an_incomplete_run_and_leaves_nothing_half",
            "test_ends::test_a_folder_that_takes_no_more_is_incomplete",
        ),
    ),
    (
        "A file is incomplete on object storage; several create the same file at once; no credentials",
        "exit code 3; one succeeds; a sentence",
        (
            "test_object_storage::test_a_file_that_arrives_short_is_an_incomplete_run",
            "test_object_storage::test_of_many_that_create_a_file_one_does",
            "test_object_storage::test_a_storage_without_credentials_is_a_sentence",
        ),
    ),
    (
        "A killed writer leaves half a file",
        "never listed, removed by the next run",
        ("test_storage::test_what_a_killed_writer_left_is_never_listed_and_swept",),
    ),
    (
        "A lock remains from a dead process, a zombie or another machine, or is damaged; several take it over at once",
        "one takes it over, and it is recorded",
        (
            "test_lock::test_the_lock_of_a_dead_process_is_taken_over",
            "test_lock::test_a_zombie_holds_nothing_and_a_clock_that_was_set_changes_nothing",
            "test_lock::test_on_another_machine_renewals_tell",
            "test_lock::test_of_several_that_take_over_a_dead_lock_one_holds_it",
            "test_lock::test_a_lock_is_renewed_and_a_damaged_one_no_obstacle",
        ),
    ),
    (
        "A clock is set while a run holds its lock; a storage answers an error once, or only after it has created the file; "
        "a file system has no links; somebody removes the lock",
        "a live run keeps its lock, or does not begin; a run that lost it ends with exit code 3",
        (
            "test_lock::test_a_clock_that_is_set_takes_no_lock_from_the_living",
            "test_lock::test_an_error_that_passes_is_tried_again",
            "test_lock::test_a_creation_that_was_answered_with_an_error_is_a_creation",
            "test_lock::test_a_storage_that_gives_no_answer_begins_no_run",
            "test_lock::test_a_file_system_without_links_locks_too",
            "test_lock::test_a_lock_that_was_lost_for_a_while_stays_lost",
            "test_lock::test_a_run_whose_lock_is_lost_does_not_complete",
        ),
    ),
    (
        "A model's files are replaced while a run goes on, or overwritten in place under an actor; a machine has others; "
        "the `main` of a hub name moves",
        "nothing of the other model is kept, neither in the run nor in a cache; exit code 3, or 2 for a machine",
        (
            "test_loaded::test_a_model_exchanged_before_it_is_loaded_ends_with_3_and_leaves_nothing",
            "test_loaded::test_a_tokenizer_is_proved_where_it_is_loaded",
            "test_loaded::test_files_exchanged_under_an_actor_write_no_part",
            "test_loaded::test_a_restarted_actor_that_finds_another_model_runs_nothing",
            "test_loaded::test_a_hub_name_means_one_revision_for_the_whole_run",
        ),
    ),
    (
        "A source is written or replaced while it is read",
        "exit code 2, and nothing of the mixture is kept",
        (
            "test_changing::test_a_unit_whose_file_is_exchanged_is_not_read",
            "test_changing::test_a_source_of_many_units_of_which_one_changes_keeps_nothing",
            "test_changing::test_pairs_that_change_are_refused",
            "test_changing::test_a_task_whose_files_change_is_refused",
        ),
    ),
    (
        "A bit of a file flips on the disk, or its end is cut: parts, footers, JSON that decides, the cache",
        "noticed when it is read; the part is named and made again, with the same bytes",
        (
            "test_sealed::test_no_flipped_bit_of_a_part_passes",
            "test_sealed::test_no_flipped_bit_of_the_footer_passes",
            "test_sealed::test_no_flipped_bit_of_a_json_that_decides_passes",
            "test_resuming::test_an_unfinished_run_makes_again_what_it_misses_and_what_is_damaged",
            "test_cache::test_a_run_embeds_again_what_its_cache_cannot_give_and_says_so",
        ),
    ),
    (
        "A file of a finished run is missing, empty, cut, changed, or another run's",
        "the same command makes exactly that file again; all others stay as they are",
        (
            "test_finished_runs::test_each_damage_of_each_file_is_noticed",
            "test_finished_runs::test_what_is_damaged_is_made_again_and_nothing_else",
        ),
    ),
    (
        "A part of the record of nights is damaged, or no part at all",
        "that night is named and not compared with; every other night ends as without it",
        (
            "test_record::test_a_damaged_part_takes_only_its_own_night_with_it",
            "test_finished_runs::test_damage_beside_a_run_never_touches_it",
        ),
    ),
    (
        "A run is stopped in any step, with half of the pieces of every step done",
        "no piece is done twice, and the bytes are the same",
        (
            "test_resuming::test_an_audit_goes_on_without_doing_a_piece_twice",
            "test_resuming::test_a_command_goes_on_without_doing_a_piece_twice",
        ),
    ),
    (
        "Standard output is closed, full or no longer read; SIGTERM comes while Ray starts",
        "the exit code is that of the run; 3, a sentence and a folder that can be resumed",
        (
            "test_ends::test_a_reader_that_has_read_enough_is_no_failure",
            "test_ends::test_a_full_disk_behind_a_stream_is_no_failure_of_the_run",
            "test_imports::test_a_stream_that_cannot_write_a_letter_changes_no_exit_code",
            "test_ends::test_closed_streams_are_no_failure_of_the_run",
            "test_ends::test_what_only_prints_is_done_where_its_reader_has_read_enough",
            "test_ends::test_a_kill_while_ray_starts_is_incomplete_and_leaves_nothing",
        ),
    ),
    (
        "A text kills the process that embeds it, each time",
        "found after a bounded number of deaths, left out with the reason; the embeddings of the others do not change",
        (
            "test_marks::test_exactly_what_kills_is_left_out",
            "test_marks::test_texts_that_kill_or_fail_are_recorded_and_all_others_analysed",
            "test_marks::test_the_number_of_deaths_is_bounded",
            "test_pair_socm::test_a_text_that_kills_its_process_costs_its_pairs_only",
            "test_cells::test_a_piece_that_kills_its_worker_is_given_up_and_the_others_go_on",
        ),
    ),
    (
        "A text breaks tokenizer or model, or gives no finite embedding",
        "left out with the reason",
        (
            "test_chunks_and_failures::test_texts_that_the_model_fails_on_are_found_and_the_others_embedded",
            "test_diagnose_edges::test_texts_that_the_model_fails_on_are_rejected_and_the_others_looked_into",
            "test_pair_socm::test_a_text_that_breaks_the_model_costs_its_pairs_only",
        ),
    ),
    (
        "Memory is too small for a micro-batch, or for a single text",
        "the batch is halved; the text is named",
        (
            "test_chunks_and_failures::test_a_batch_that_memory_does_not_hold_runs_in_halves",
            "test_chunks_and_failures::test_a_text_too_large_for_the_memory_is_named_alone",
        ),
    ),
    (
        "A GPU is lost (simulated)",
        "its process ends, no text is blamed",
        (
            "test_cells::test_a_lost_gpu_ends_the_process_and_other_errors_do_not",
            "test_chunks_and_failures::test_a_lost_device_is_no_fault_of_a_text",
        ),
    ),
    (
        "The cluster is smaller than it said; a worker cannot be reached for a while",
        "it is used as it is; another worker takes the piece",
        (
            "test_placement::test_an_actor_that_finds_no_place_gets_no_work",
            "test_growing::test_nodes_that_come_are_used_and_nodes_that_go_lose_nothing",
            "test_sick::test_a_worker_without_work_makes_room_for_one_that_has_lost_its_place",
            "test_placement::test_workers_that_never_find_a_place_end_the_run",
            "test_sick::test_a_piece_whose_worker_cannot_be_reached_is_given_out_again",
        ),
    ),
    (
        "A machine does not share the run folder",
        "exit code 2 with its address, before anything is computed",
        ("test_placement::test_every_node_proves_that_it_shares_the_folders",),
    ),
    (
        "The cache is damaged, pruned during a run, shared by two runs at once, or cannot be written",
        "the run loses only time",
        (
            "test_cache::test_a_run_embeds_again_what_its_cache_cannot_give_and_says_so",
            "test_cache::test_entries_that_can_be_no_embeddings_are_counted_and_not_used",
            "test_cache::test_files_of_others_in_a_cache_are_neither_used_nor_removed",
            "test_cache::test_pruning_beside_a_run_costs_neither_anything",
            "test_cache::test_two_runs_at_once_leave_what_one_leaves",
            "test_cache::test_a_cache_that_cannot_be_added_to_costs_the_run_nothing",
        ),
    ),
    (
        "The webhook fails, is busy or refuses; Kubernetes' API fails, or its answer is lost",
        "repeated, or reported without the address; one job, not two",
        (
            "test_notify::test_a_webhook_that_fails_costs_nothing_and_its_address_is_not_told",
            "test_notify::test_a_webhook_that_drips_ends_in_time",
            "test_notify::test_a_webhook_that_is_busy_is_asked_again_and_one_that_refuses_is_not",
            "test_cluster_night::test_trouble_with_the_api_server_is_waited_out",
            "test_cluster_night::test_an_answer_that_was_lost_makes_no_second_job",
        ),
    ),
    (
        "Work is done in another order, on another number of workers",
        "the same bytes",
        (
            "test_resuming::test_an_audit_goes_on_without_doing_a_piece_twice",
            "test_killed::test_an_audit_that_is_killed_while_it_embeds_goes_on_to_the_same_bytes",
            "test_correct::test_the_bytes_do_not_depend_on_workers_or_order",
        ),
    ),
)
"""Each fault, what must hold, and the tests that inject it."""

BAD_INPUTS = (
    ("test_bad_input", "common bad corpora, through whole runs"),
    ("test_shards", "rows and files of every kind, and sources that do not exist"),
    ("test_stream", "sources of every kind in many units: repeated ids, samples, limits, empty and damaged units"),
    ("test_rejected", "sources most of whose rows are unusable, and vectors of several widths"),
    ("test_sources", "real-world files: truncated, misnamed, with odd columns, behind passwords"),
    ("test_hub", "data sets whose README, links or cells lead to private files and other addresses"),
    ("test_urls", "addresses with passwords of any characters, in sentences and in texts without an end"),
    ("test_places", "names and places of run folders"),
    ("test_formats", "one table in every format; ids, lengths and encodings; CSV whose rows do not fit"),
    ("test_folders", "hidden names, links, tables that keep replaced rows, names with brackets"),
    ("test_lakes", "Lance and Delta tables"),
    ("test_postgres", "PostgreSQL while others write; kills"),
    ("test_vectors", "user-supplied embeddings"),
    ("test_own_tasks", "user-supplied data for scores"),
    ("test_config", "configurations"),
    ("test_cli", "wrong options and their errors"),
    ("test_checkpoint", "folders that contain no model, or an unsafe one"),
    ("test_ends", "damaged models, through whole commands"),
    ("test_bombs", "small files of gigabytes, and rows without an end"),
    ("test_steering", "ids, texts and paths that steer a terminal"),
    ("test_random_rows", "rows that are drawn at random: see below"),
    ("test_random_damage", "files that are damaged at random"),
)
"""Test files for the mistakes that a user can make."""


class Drawn(NamedTuple):
    """A test for which hypothesis draws examples."""

    file: str
    test: str
    examples: int


@lru_cache(maxsize=1)
def _files() -> dict[str, list[ast.stmt]]:
    """The statements of each file of tests, by the file's name."""
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    return {file.stem: ast.parse(file.read_text("utf-8")).body for file in files}


@lru_cache(maxsize=1)
def suite() -> dict[str, list[ast.FunctionDef]]:
    """The test functions of each file of tests, by the file's name."""
    return {
        file: [node for node in body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]
        for file, body in _files().items()
    }


def drawn() -> list[Drawn]:
    """Every test that draws, with the least number of examples: as many for each of its parameters."""
    found = []
    for file, tests in suite().items():
        for test in tests:
            inner = [node for node in ast.walk(test) if isinstance(node, ast.FunctionDef)]
            found += [Drawn(file, test.name, _examples(node)) for node in inner if _decorators(node, "given")]
    return found


@lru_cache(maxsize=1)
def slower() -> dict[str, str]:
    """The tier of each test that `make test` leaves out, as `file::test`."""
    found = {}
    for file, body in _files().items():
        of_file = [node for node in body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark"]
        for test in suite()[file]:
            # Not those of single parameters, inside a `parametrize`.
            own = [one for one in test.decorator_list if not isinstance(one, ast.Call)]
            marks = {node.attr for one in (*of_file, *own) for node in ast.walk(one) if _is_mark(node)}
            found |= {f"{file}::{test.name}": tier for tier in ("proof", "soak") if tier in marks}
    return found


def _is_mark(node: ast.AST) -> TypeGuard[ast.Attribute]:
    return isinstance(node, ast.Attribute) and ast.unparse(node.value) == "pytest.mark"


def cases(test: ast.FunctionDef) -> int:
    """The least number of cases of a test: parameters that are not written out as a list count as one."""
    number = 1
    for call in _decorators(test, "parametrize"):
        values = call.args[1]
        if isinstance(values, (ast.List, ast.Tuple)) and not any(isinstance(v, ast.Starred) for v in values.elts):
            number *= len(values.elts)
    return number


def page() -> str:
    """docs/dev/reliability.md."""
    soak = json.loads((ROOT / "benchmarks" / "results" / "soak.json").read_text("utf-8"))
    mutants = json.loads((ROOT / "benchmarks" / "results" / "mutants.json").read_text("utf-8"))
    return "\n".join(
        [*_head(soak, mutants), *_faults(soak["storms"]), *_bad_inputs(), *_random(), *_mutants(mutants), _NOT_TRIED]
    )


_NOT_TRIED = """
## What is not survived, or was never tried

- A network that is cut between two living halves of a cluster: the tests only kill nodes and processes.
- Memory without error correction that returns other bytes than were written: what a worker computes is not computed
  twice. (A lost or doubled tile is detected, because sums are compared with their closed form.)
- Damage on disk to a part that a resumed run reads no more: its next reader notices it.
- A library that ends its own process: in rare cases a damaged Lance table does, before anything is written. The test
  allows one table in twenty.
- A real GPU that falls off its bus, a real spot machine that is taken back, Kubernetes itself
  ([what was done instead](../../cluster/README.md#what-was-never-run)).
"""


def _head(soak: dict[str, Any], mutants: dict[str, Any]) -> list[str]:
    tests, examples = suite(), drawn()
    named = {name for _, _, names in FAULTS for name in names}
    storms = soak["storms"]
    bytes_of_soak = "all survived with the same bytes" if storms["same_bytes"] else "and the bytes were not the same"
    return [
        "# What it survives",
        "",
        "A fault changes no byte of a result: the run goes on, or ends with an exit code and is resumed. To try all faults:",
        "",
        "    make test",
        "    make proof",
        "    make soak",
        "",
        "A test checks every count and name of this page against the suite.",
        "",
        "| | |",
        "| --- | --- |",
        f"| tests | more than {sum(map(len, tests.values())) // 50 * 50:,} |",
        f"| faults injected | {len(FAULTS)} kinds, by {len(named)} tests |",
        f"| kills in the last soak ({storms['on']}) | {storms['kills']}, {bytes_of_soak} |",
        *_slow(soak),
        *_machines(),
        f"| mistakes made in the code, and noticed by the tests | {_noticed(mutants)} |",
        f"| bad inputs tested | {sum(sum(map(cases, tests[file])) for file, _ in BAD_INPUTS)} cases written out |",
        f"| [run by the tests](coverage.md), of the code that decides numbers or what is kept | {coverage_page.share()} |",
        f"| drawn by hypothesis | {len(examples)} tests, at least {sum(e.examples for e in examples):,} examples a run |",
    ]


def _machines() -> list[str]:
    """What `make cluster` has run: the job of cluster/slurm, and the image of cluster/Dockerfile."""
    file = ROOT / "benchmarks" / "results" / "cluster.json"
    parts = json.loads(file.read_text("utf-8")) if file.exists() else {}
    rows = []
    for name, link in {
        "slurm": "[the job for Slurm](../../cluster/slurm/README.md) on a real one of two machines",
        "image": "[the image](../../cluster/Dockerfile), on a base of Debian's packages",
    }.items():
        if "done" in (part := parts.get(name, {})):
            ways = (
                f"{one['what'].removeprefix(f'{name}, ')}: {one['seconds']} s"
                + f", {one.get('parts_kept')} parts kept" * bool(one.get("parts_kept"))
                for one in part["done"]
            )
            rows.append(f"| {link} ({part['on']}) | {'; '.join(ways)} |")
        elif part:
            rows.append(f"| {link} ({part['on']}) | not done: {part['not_done']} |")
    return rows


def _slow(soak: dict[str, Any]) -> list[str]:
    """The tests that take minutes, where a soak has run them."""
    if (slow := soak.get("tests")) is None:
        return []
    failed = f"{len(slow['failed'])} failed" if slow["failed"] else "all passed"
    skipped = f" but {slow['skipped']} skipped" if slow["skipped"] else ""
    return [f"| tests that take minutes, in the last soak ({slow['on']}) | {slow['tests']}, {failed}{skipped} |"]


def _faults(soak: dict[str, Any]) -> list[str]:
    kinds = ", ".join(f"{count} × {kind}" for kind, count in soak["of"].items())
    same = "the same bytes as the undisturbed run" if soak["same_bytes"] else "other bytes than the undisturbed run"
    return [
        "",
        "## Faults",
        "",
        "«The same bytes»: the digests of tables, texts, factors and neighbours are those of an undisturbed run. A test",
        "that is named alone runs in `make proof`, the others in `make test` or `make soak`.",
        "",
        "| fault | result | tests |",
        "| --- | --- | --- |",
        *(f"| {fault} | {holds} | {', '.join(map(_proof, names))} |" for fault, holds, names in FAULTS),
        "",
        "`make soak` kills at seeded random moments of every stage of every command, on several nodes of one machine. Last",
        f"result (benchmarks/results/soak.json, seed {soak['seed']}): {soak['kills']} kills ({kinds}) in",
        f"{soak['runs']} runs on {soak['nodes']} nodes, {soak['starts']} starts of the driver, {soak['files']} files of",
        f"the commands compared: {same}. Kills by command:",
        f"{', '.join(f'{name} {sum(own.values())} in {len(own)} stages' for name, own in soak['stages'].items())}.",
    ]


def _proof(name: str) -> str:
    """A test, and the command that runs it."""
    tier = slower().get(name, "test")
    return f"`{name}`" + (f" ({tier})" if tier != "proof" else "")


def _noticed(mutants: dict[str, Any]) -> str:
    every = [own for found in mutants.values() for own in found["mutations"]]
    noticed = sum(own["noticed"] for own in every)
    return f"{noticed} of {len(every)}" + ("" if noticed == len(every) else ", the others with a reason")


def _mutants(mutants: dict[str, Any]) -> list[str]:
    """What came of the mistakes that `make mutants` makes."""
    minutes = sum(found["seconds"] for found in mutants.values()) // 60
    dates = [found["on"] for found in mutants.values()]
    tiers = [own.get("tier") for found in mutants.values() for own in found["mutations"] if own["noticed"]]
    unnoticed = [own for found in mutants.values() for own in found["mutations"] if not own["noticed"]]
    where = [f"{own['file'].rpartition('/')[2]}, `{' '.join(own['old'].split())}`" for own in unnoticed]
    reasons = [f"- {place}: {own['reason']}." for place, own in zip(where, unnoticed, strict=True)]
    return [
        "",
        "## Mistakes that the tests notice",
        "",
        "`make mutants` makes one mistake at a time in a copy of the code that decides: `>` for `>=`, a condition gone.",
        f"It takes {minutes} minutes on two cores and runs the tests of `make test` and `make proof`. In",
        f"benchmarks/results/mutants.json ({' to '.join(dict.fromkeys((min(dates), max(dates))))}, {len(mutants)} subjects)",
        f"{len(tiers)} of {len(tiers) + len(unnoticed)} mistakes were noticed: {tiers.count('test')} by `make test`,",
        f"{tiers.count('proof')} by `make proof` alone, {tiers.count(None)} when there was one tier.",
        *(["", "Not noticed:", "", *reasons] if reasons else []),
    ]


def _bad_inputs() -> list[str]:
    tests = suite()
    paths = {file.stem: file.relative_to(ROOT).as_posix() for file in (ROOT / "tests").rglob("test_*.py")}
    return [
        "",
        "## Bad inputs",
        "",
        "Each gives meaningful figures, a row of `rejected/` with its reason, or one sentence and exit code 2 (in brackets:",
        "cases).",
        "",
        *(f"- [{file}.py](../../{paths[file]}) ({sum(map(cases, tests[file]))}): {what}" for file, what in BAD_INPUTS),
    ]


def _random() -> list[str]:
    of_file: dict[str, list[Drawn]] = {}
    for own in drawn():
        of_file.setdefault(own.file, []).append(own)
    strange = [file for file in of_file if file.startswith("test_random_")]
    return [
        "",
        "## Drawn at random",
        "",
        "The same examples are drawn in each run; `TEMPSCALE_FUZZ=20 python -m pytest -k test_random` draws twenty times as",
        "many, and different ones each time. Each parameter of a test draws as many.",
        "",
        "| random input | tests | examples |",
        "| --- | --- | --- |",
        *(f"| `{file}.py` | {len(of_file[file])} | {sum(own.examples for own in of_file[file]):,} |" for file in strange),
        "",
        f"Numbers are drawn in {len(of_file) - len(strange)} more files.",
    ]


def _decorators(node: ast.FunctionDef, name: str) -> list[ast.Call]:
    """The decorators of a function that call something with this name."""
    calls = [decorator for decorator in node.decorator_list if isinstance(decorator, ast.Call)]
    return [call for call in calls if ast.unparse(call.func).rpartition(".")[2] == name]


def _examples(test: ast.FunctionDef) -> int:
    """The number of examples of a test that draws, from `settings(max_examples=N)` or `drawn(N)`."""
    for call in _decorators(test, "settings"):
        for keyword in call.keywords:
            if keyword.arg == "max_examples" and isinstance(keyword.value, ast.Constant):
                return int(keyword.value.value)
    for call in _decorators(test, "drawn"):
        if isinstance(call.args[0], ast.Constant):
            return int(call.args[0].value)
    return DEFAULT_EXAMPLES
