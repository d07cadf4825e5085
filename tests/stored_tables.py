"""One table of texts and vectors, as Parquet and in each kind of store that commands read."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

ROWS, DIM = 300, 8


def table(rows=ROWS):
    """Ids, texts, lengths, a group and vectors of float32."""
    random = np.random.default_rng(0)
    vectors = random.standard_normal((rows, DIM)).astype(np.float32) + np.eye(DIM, dtype=np.float32)[0]
    lists = pa.array(list(vectors), pa.list_(pa.float32()))
    columns = {
        "id": [f"1{k:06d}" for k in range(rows)],
        "text": [f"text number {k} " * (1 + k % 4) for k in range(rows)],
        "tokens": [5 + k % 90 for k in range(rows)],
        "source": [f"s{k % 3}" for k in range(rows)],
        "embedding": lists,
    }
    return pa.table(columns)


def matrix(rows):
    """The vectors of a table."""
    return np.stack(rows.column("embedding").to_numpy())


def parquet(folder, rows):
    pq.write_table(rows, folder / "all.parquet")
    return str(folder / "all.parquet")


def npy(folder, rows):
    np.save(folder / "all.npy", matrix(rows))
    pq.write_table(rows.drop(["embedding"]), folder / "ids.parquet", row_group_size=70)
    return f"{folder}/all.npy?ids={folder}/ids.parquet"


def npz(folder, rows):
    further = {name: np.array(rows.column(name).to_pylist()) for name in rows.column_names if name != "embedding"}
    np.savez(folder / "all.npz", **further, embedding=np.asfortranarray(matrix(rows)))
    return f"{folder}/all.npz"


def lance(folder, rows):
    import lance

    lance.write_dataset(rows, str(folder / "all.lance"))
    return f"{folder}/all.lance"


def delta(folder, rows):
    import deltalake

    deltalake.write_deltalake(str(folder / "delta"), rows)
    return f"{folder}/delta"


def qdrant(folder, rows):
    from qdrant_client import QdrantClient, models

    client = QdrantClient(path=str(folder / "qdrant"))
    client.create_collection("docs", models.VectorParams(size=DIM, distance=models.Distance.DOT))
    points = []
    for row in rows.to_pylist():
        points.append(models.PointStruct(id=int(row.pop("id")), vector=row.pop("embedding"), payload=row))
    client.upload_points("docs", points)
    client.close()
    return f"qdrant:{folder}/qdrant/docs?pickles=trusted"


def faiss_ivf(folder, rows):
    """The ids are FAISS's, and the rest of the table is not there."""
    import faiss

    index = faiss.index_factory(DIM, "IVF4,Flat")
    index.train(matrix(rows))
    backwards = rows.take(list(range(rows.num_rows))[::-1])
    index.add_with_ids(matrix(backwards), np.array([int(name) for name in backwards.column("id").to_pylist()]))
    faiss.write_index(index, str(folder / "ivf.faiss"))
    return f"{folder}/ivf.faiss"


def faiss_flat(folder, rows):
    import faiss

    index = faiss.IndexFlatIP(DIM)
    index.add(matrix(rows))
    faiss.write_index(index, str(folder / "flat.index"))
    pq.write_table(rows.drop(["embedding"]), folder / "ids.parquet")
    return f"faiss:{folder}/flat.index?ids={folder}/ids.parquet"


def iceberg_catalogue(folder):
    """The properties of a catalogue in a folder, named `local`."""
    return {"type": "sql", "uri": f"sqlite:///{folder}/catalogue.db", "warehouse": f"file://{folder}/warehouse"}


def iceberg(folder, rows):
    """A table of two appends."""
    from pyiceberg.catalog import load_catalog

    (folder / "warehouse").mkdir()
    catalogue = load_catalog("local", **iceberg_catalogue(folder))
    catalogue.create_namespace("texts")
    made = catalogue.create_table("texts.docs", rows.schema)
    half = rows.num_rows // 2
    made.append(rows.slice(0, half))
    made.append(rows.slice(half))
    return f"iceberg:{made.location().removeprefix('file://')}"


KINDS = {"npy": npy, "npz": npz, "lance": lance, "delta": delta, "qdrant": qdrant, "faiss": faiss_flat, "iceberg": iceberg}
"""What writes the table to a folder as each kind, and returns its address."""
