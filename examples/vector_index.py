#!/usr/bin/env python3
"""A vector-index process: a FAISS IVF index behind a Unix socket.

The vectors are made here from a fixed seed, clustered, so that an inverted file has something to
find. A request is one SOCK_SEQPACKET record of DIM float32; the answer is K int64 ids,
nearest first. SIGTERM ends it. It prints one JSON line when it is ready.

usage: vector_index.py --socket PATH [--vectors N] [--dim D] [--seed S]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pathlib
import selectors
import signal
import socket
import sys

import faiss
import numpy as np
import numpy.typing as npt

K = 10
CLUSTERS = 128


def make_vectors(count: int, dim: int, seed: int) -> npt.NDArray[np.float32]:
    """`count` vectors around CLUSTERS centres; the same for the same seed on every machine."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(CLUSTERS, dim)).astype(np.float32)
    noise = rng.normal(scale=0.35, size=(count, dim)).astype(np.float32)
    return centres[rng.integers(0, CLUSTERS, count)] + noise


def build(vectors: npt.NDArray[np.float32]) -> faiss.IndexIVFFlat:
    """An IVFFlat index over L2 distance, 16 of 128 lists probed."""
    dim = vectors.shape[1]
    index = faiss.IndexIVFFlat(faiss.IndexFlatL2(dim), dim, CLUSTERS)
    index.train(vectors)
    index.add(vectors)
    index.nprobe = 16
    return index


def serve(path: pathlib.Path, index: faiss.IndexIVFFlat, dim: int) -> int:
    """Answers until SIGTERM; returns how many queries were answered."""
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(str(path))
    listener.listen(8)
    wake_r, wake_w = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wake_w)
    signal.signal(signal.SIGTERM, lambda *_: None)
    signal.signal(signal.SIGINT, lambda *_: None)
    with selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)
        selector.register(wake_r, selectors.EVENT_READ)
        print(json.dumps({"ready": True, "vectors": index.ntotal, "dim": dim}), flush=True)
        answered = 0
        while True:
            for key, _ in selector.select():
                if key.fd == wake_r:
                    path.unlink(missing_ok=True)
                    return answered
                if key.fileobj is listener:
                    connection, _ = listener.accept()
                    selector.register(connection, selectors.EVENT_READ)
                    continue
                connection = key.fileobj  # type: ignore[assignment]  # only sockets are registered
                request = connection.recv(dim * 4 + 1)
                if len(request) != dim * 4:
                    # End of connection, or a peer that does not speak our length: it is let go.
                    selector.unregister(connection)
                    connection.close()
                    continue
                query = np.frombuffer(request, dtype=np.float32).reshape(1, dim)
                _, ids = index.search(query, K)
                connection.send(ids[0].astype(np.int64).tobytes())
                answered += 1


def main() -> None:
    """Builds the index and serves it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--socket", required=True, type=pathlib.Path)
    parser.add_argument("--vectors", type=int, default=20_000)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--name", default="nodeagent-example-vector", help="a workload matches it")
    args = parser.parse_args()
    # One thread: a pool wider than the pinned CPUs would only fight with itself.
    faiss.omp_set_num_threads(1)
    index = build(make_vectors(args.vectors, args.dim, args.seed))
    answered = serve(args.socket, index, args.dim)
    print(json.dumps({"answered": answered}), flush=True)


if __name__ == "__main__":
    sys.exit(main())
