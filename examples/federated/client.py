"""A Flower client; it needs flwr, numpy and onnxruntime, and the files of `ckplan artifacts`.

python -m examples.federated.client DIR BATCHES ADDRESS --client C --clients N [--steps STEPS] [--patience SECONDS]

DIR holds the files for a client's share of a batch. Parameters and running statistics go to the server and come back
averaged; the optimizer's state stays here.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import socket
import sys
import time
from pathlib import Path

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")

import grpc
import numpy as np
import onnxruntime
from flwr.client import NumPyClient, start_client

from examples.loops.safetensors import tensors

Arrays = dict[str, np.ndarray]
PAUSE = 0.1


class Client(NumPyClient):
    """Trains on its share of one batch after the other, in each round from the parameters that the server sends.

    Attributes:
        shared: names of what goes to the server, in the order in which it does.
        steps: how many batches it trains on in a round.
    """

    def __init__(self, folder: Path, batches: Arrays, client: int, clients: int, steps: int) -> None:
        manifest = json.loads((folder / "manifest.json").read_text())
        checkpoint = tensors((folder / "checkpoint.safetensors").read_bytes())
        self.sessions = [onnxruntime.InferenceSession(folder / f"{kind}.onnx") for kind in ("training", "update")]
        self.updates, self.loss = manifest["updates"], manifest["loss"]
        self.values = {state["name"]: np.zeros(state["shape"], state["dtype"]) for state in manifest["states"]}
        self.values |= checkpoint
        self.shared = shared_names(manifest)
        # Each array holds batches, and of each batch this client has its part.
        self.batches = {name: np.array_split(array, clients, axis=1)[client] for name, array in batches.items()}
        self.steps, self.step = steps, 0

    def fit(self, parameters: list[np.ndarray], config: dict[str, object]) -> tuple[list[np.ndarray], int, dict]:
        """Train for a round; returns parameters, the number of examples, and the last loss."""
        self.values |= zip(self.shared, parameters, strict=True)
        for _ in range(self.steps):
            self.values |= {name: array[self.step % len(array)] for name, array in self.batches.items()}
            for session in self.sessions:
                made = session.run(None, {value.name: self.values[value.name] for value in session.get_inputs()})
                names = [self.updates.get(value.name, value.name) for value in session.get_outputs()]
                self.values |= zip(names, made, strict=True)
            self.step += 1
        examples = next(iter(self.batches.values())).shape[1] * self.steps
        return [self.values[name] for name in self.shared], examples, {"loss": float(self.values[self.loss])}


def shared_names(manifest: dict) -> list[str]:
    """What clients learn in common: of the checkpoint, what the files give a new value."""
    return [name for name in manifest["files"]["checkpoint"]["tensors"] if name in manifest["updates"].values()]


def wait_for_server(address: str, patience: float) -> None:
    """Wait until the server listens, or raise a TimeoutError."""
    host, _, port = address.rpartition(":")
    end = time.monotonic() + patience
    while True:
        try:
            socket.create_connection((host, int(port)), timeout=patience).close()
        except OSError:
            if time.monotonic() > end:
                raise TimeoutError(f"no server at {address} within {patience:g} s") from None
            time.sleep(PAUSE)
        else:
            return


def main() -> None:
    """Take part in the rounds of a server."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("batches", type=Path)
    parser.add_argument("address", help="HOST:PORT of the server")
    parser.add_argument("--client", type=int, required=True)
    parser.add_argument("--clients", type=int, required=True)
    parser.add_argument("--steps", type=int, default=1, help="steps in a round")
    parser.add_argument("--patience", type=float, default=60, help="seconds to wait for the server")
    given = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    try:
        batches = tensors(given.batches.read_bytes())
        client = Client(given.folder, batches, given.client, given.clients, given.steps)
        wait_for_server(given.address, given.patience)
        start_client(server_address=given.address, client=client.to_client())
    except (OSError, ValueError) as error:
        sys.exit(f"client {given.client}: {error}")
    except grpc.RpcError as error:
        sys.exit(f"client {given.client}: the server at {given.address} went away ({error.code().name})")


if __name__ == "__main__":
    main()
