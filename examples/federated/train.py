r"""Start a server and clients on this machine, and end them all when one fails.

    ckplan artifacts examples/digits/digits.onnx -o share --dim batch=20 --loss cross-entropy --optimizer sgd
    python -m examples.loops.batches batches.safetensors 60
    python -m examples.federated.train share batches.safetensors 20 learnt.safetensors --clients 3

The files are made for a client's share of the batch: 20 of 60 images with three clients. With one step in a round
(--steps) and plain gradient descent, the rounds are the steps of one process on whole batches.
"""

from __future__ import annotations

import argparse
import socket
import sys

from examples.processes import run_together


def main() -> int:
    """Run the rounds; returns an exit code."""
    parser = argparse.ArgumentParser()
    for name in ("folder", "batches", "rounds", "out"):
        parser.add_argument(name)
    parser.add_argument("--clients", type=int, default=2)
    parser.add_argument("--steps", type=int, default=1, help="steps in a round")
    parser.add_argument("--patience", type=float, default=60, help="seconds to wait for the others")
    given = parser.parse_args()
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    common = ["--clients", str(given.clients), "--patience", str(given.patience)]
    program = [sys.executable, "-m"]
    server = [*program, "examples.federated.server", given.folder, given.rounds, given.out, address, *common]
    client = [*program, "examples.federated.client", given.folder, given.batches, address, *common]
    clients = [[*client, "--client", str(number), "--steps", str(given.steps)] for number in range(given.clients)]
    return run_together([server, *clients])


if __name__ == "__main__":
    sys.exit(main())
