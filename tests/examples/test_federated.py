"""Federated rounds over Flower learn what one process learns; a client that goes silent ends them in one line."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

import ckplan
from examples.digits.train import FORWARD
from examples.loops.batches import write_batches
from examples.loops.safetensors import tensors

PYTHON = os.environ.get("CKPLAN_FLOWER_PYTHON") or (sys.executable if find_spec("flwr") else None)
"""An interpreter that has flwr, numpy and onnxruntime; flwr holds back what others want newer."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        PYTHON is None, reason="flwr is not installed, and CKPLAN_FLOWER_PYTHON names no Python that has it"
    ),
]

ROOT = Path(__file__).parents[2]
BATCH = 60
LIMIT = 300
PATIENCE = "4"

Arrays = dict[str, np.ndarray]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The batches, and the files for whole batches and for shares of them."""
    folder = tmp_path_factory.mktemp("federated")
    write_batches(folder / "batches", BATCH)
    for clients, optimizer in ((1, "sgd"), (3, "sgd"), (2, "momentum")):
        made = folder / f"{optimizer} of {clients}"
        options = {"dims": {"batch": BATCH // clients}, "loss": "cross-entropy"}
        ckplan.artifacts(FORWARD, made, optimizer=f"{optimizer}:learning_rate=0.05", **options)
    return folder


class Alone:
    """One process with its table of tensors."""

    def __init__(self, folder: Path) -> None:
        made = ckplan.open_artifacts(folder)
        self.sessions = [onnxruntime.InferenceSession(made.path(kind)) for kind in ("training", "update")]
        self.values = {state["name"]: np.zeros(state["shape"], state["dtype"]) for state in made.manifest["states"]}
        self.values |= tensors(made.path("checkpoint").read_bytes())
        self.updates = made.updates

    def step(self, batch: Arrays) -> None:
        self.values |= batch
        for session in self.sessions:
            outputs = session.run(None, {value.name: self.values[value.name] for value in session.get_inputs()})
            names = [self.updates.get(value.name, value.name) for value in session.get_outputs()]
            self.values |= zip(names, outputs, strict=True)


def words(module: str, *arguments: object) -> list[str]:
    return [str(PYTHON), "-m", f"examples.federated.{module}", *map(str, arguments)]


def together(folder: Path, kind: str, clients: int, rounds: int, steps: int, out: Path) -> Arrays:
    """What clients learn in rounds of some steps."""
    arguments = [folder / f"{kind} of {clients}", folder / "batches", rounds, out]
    done = subprocess.run(
        words("train", *arguments, "--clients", clients, "--steps", steps),
        cwd=ROOT, capture_output=True, text=True, timeout=LIMIT, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == rounds
    return tensors(out.read_bytes())


def same(found: Arrays, expected: Arrays, begin: Arrays) -> None:
    assert {"conv1.weight", "scores.bias"} <= found.keys()
    assert "learning_rate" not in found
    assert np.abs(found["conv1.weight"] - begin["conv1.weight"]).max() > 1e-3
    for name, array in found.items():
        np.testing.assert_allclose(array, expected[name], rtol=0, atol=1e-6, err_msg=name)


def test_a_step_in_each_round_is_a_step_on_the_whole_batch(folder: Path, tmp_path: Path) -> None:
    found = together(folder, "sgd", clients=3, rounds=8, steps=1, out=tmp_path / "learnt")
    one = Alone(folder / "sgd of 1")
    begin = dict(one.values)
    batches = tensors((folder / "batches").read_bytes())
    for step in range(8):
        one.step({name: array[step] for name, array in batches.items()})
    same(found, one.values, begin)


def test_several_steps_in_a_round(folder: Path, tmp_path: Path) -> None:
    """Parameters are averaged after each round, and momentum stays with its client."""
    found = together(folder, "momentum", clients=2, rounds=2, steps=3, out=tmp_path / "learnt")
    both = [Alone(folder / "momentum of 2") for _ in range(2)]
    begin = dict(both[0].values)
    batches = tensors((folder / "batches").read_bytes())
    for step in range(6):
        for number, one in enumerate(both):
            one.step({name: np.array_split(array[step], 2)[number] for name, array in batches.items()})
        if step in (2, 5):
            mean = {name: (both[0].values[name] + both[1].values[name]) / 2 for name in found}
            for one in both:
                one.values |= mean
    same(found, both[0].values, begin)


def start(module: str, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        words(module, *arguments), cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def free_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return f"127.0.0.1:{free.getsockname()[1]}"


def server(folder: Path, address: str, out: Path) -> subprocess.Popen[str]:
    """A server of two clients and no end of rounds."""
    return start("server", folder / "sgd of 3", 10**6, out, address, "--clients", 2, "--patience", PATIENCE)


def client(folder: Path, address: str, number: int) -> subprocess.Popen[str]:
    options = ["--client", number, "--clients", 3, "--patience", PATIENCE]
    return start("client", folder / "sgd of 3", folder / "batches", address, *options)


def refused(process: subprocess.Popen[str]) -> str:
    """The line with which a process gave up."""
    _, said = process.communicate(timeout=LIMIT)
    assert process.returncode == 1, said
    (line,) = said.splitlines()
    return line


def test_a_client_that_never_comes(folder: Path, tmp_path: Path) -> None:
    line = refused(server(folder, free_address(), tmp_path / "learnt"))
    assert line == f"server: 0 of 2 clients came within {PATIENCE} s"
    assert not (tmp_path / "learnt").exists()


def test_a_server_that_is_not_there(folder: Path) -> None:
    address = free_address()
    assert refused(client(folder, address, 1)) == f"client 1: no server at {address} within {PATIENCE} s"


def test_a_client_that_goes_silent(folder: Path, tmp_path: Path) -> None:
    address = free_address()
    serving = server(folder, address, tmp_path / "learnt")
    clients = [client(folder, address, number) for number in (0, 1)]
    try:
        assert serving.stdout is not None
        assert float(serving.stdout.readline()) > 2  # both are training
        clients[1].send_signal(signal.SIGSTOP)
        assert f"a client went away or did not answer within {PATIENCE} s" in refused(serving)
        assert f"client 0: the server at {address} went away" in refused(clients[0])
        assert not (tmp_path / "learnt").exists()
    finally:
        for process in (serving, *clients):
            process.kill()
            process.communicate()
