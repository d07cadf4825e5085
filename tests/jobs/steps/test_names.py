"""The ids of all texts by label, which tasks hold as one array."""

import numpy as np
import pyarrow as pa

from tempscale_jobs.runs.storage import Storage
from tempscale_jobs.steps.neighbours import Names, names_of_all


def test_the_ids_of_any_number_of_texts_fit_and_come_out_as_the_tables_have_them(tmp_path):
    """Offsets of 32 bits end at 2³¹ bytes: those of 89 million default ids. No table that is written has so many."""
    storage, files = Storage(str(tmp_path)), ["a.parquet", "b.parquet"]
    storage.write_table("a.parquet", pa.table({"text_id": ["p", "q"], "tokens": [1, 2]}))
    storage.write_table("b.parquet", pa.table({"text_id": ["r", "ß", "t"], "tokens": [3, 4, 5]}))
    names = names_of_all(storage, files, np.array([4, 0, 3, 1, 2]))
    assert names.ids.type == pa.large_string()
    assert names.of(np.array([0, 2, 2, 4])).equals(pa.array(["t", "ß", "ß", "r"], pa.string()))


def test_those_of_some_texts_are_found_by_their_labels():
    names = Names(pa.array(["a", "b", "c"], pa.large_string()), np.array([3, 8, 9]))
    assert names.of(np.array([9, 3])).equals(pa.array(["c", "a"], pa.string()))
