"""The server of the rounds: federated averaging, which stops when a client does not answer.

python -m examples.federated.server DIR ROUNDS OUT ADDRESS --clients N [--patience SECONDS]
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
from pathlib import Path

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")

from flwr.common import FitRes, Parameters, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server import ServerConfig, SimpleClientManager, start_server
from flwr.server.client_proxy import ClientProxy
from flwr.server.strategy import FedAvg

from examples.federated.client import shared_names
from examples.loops.safetensors import tensors, write


class Average(FedAvg):
    """Federated averaging by numbers of examples over all clients in every round.

    Flower leaves out a client that fails, which would be another sum; this one ends the run.
    """

    def __init__(self, begin: Parameters, clients: int, patience: float) -> None:
        everyone = {"fraction_fit": 1.0, "min_fit_clients": clients, "min_available_clients": clients}
        super().__init__(**everyone, fraction_evaluate=0.0, initial_parameters=begin)
        self.learnt, self.patience = begin, patience

    def aggregate_fit(
        self, server_round: int, results: list[tuple[ClientProxy, FitRes]], failures: list[object]
    ) -> tuple[Parameters | None, dict]:
        """Average parameters; prints the mean of the losses."""
        if failures or not results:
            raise TimeoutError(f"round {server_round}: a client went away or did not answer within {self.patience:g} s")
        made, metrics = super().aggregate_fit(server_round, results, failures)
        assert made is not None
        self.learnt = made
        examples = sum(result.num_examples for _, result in results)
        print(sum(result.num_examples * result.metrics["loss"] for _, result in results) / examples, flush=True)
        return made, metrics


class PatientManager(SimpleClientManager):
    """Waits for clients as long as it is told to, where Flower waits for a day."""

    def __init__(self, patience: float) -> None:
        super().__init__()
        self.patience = patience

    def wait_for(self, num_clients: int, timeout: float = 0) -> bool:
        """Wait for a number of clients; raises a TimeoutError if they do not come."""
        if not super().wait_for(num_clients, self.patience):
            raise TimeoutError(f"{len(self)} of {num_clients} clients came within {self.patience:g} s")
        return True


def main() -> None:
    """Run the rounds, and write what was learnt."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("rounds", type=int)
    parser.add_argument("out", type=Path)
    parser.add_argument("address", help="HOST:PORT to listen at")
    parser.add_argument("--clients", type=int, required=True)
    parser.add_argument("--patience", type=float, default=60, help="seconds to wait for a client")
    given = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    try:
        manifest = json.loads((given.folder / "manifest.json").read_text())
        checkpoint = tensors((given.folder / "checkpoint.safetensors").read_bytes())
        names = shared_names(manifest)
        begin = ndarrays_to_parameters([checkpoint[name] for name in names])
        average = Average(begin, given.clients, given.patience)
        config = ServerConfig(num_rounds=given.rounds, round_timeout=given.patience)
        manager = PatientManager(given.patience)
        start_server(server_address=given.address, config=config, strategy=average, client_manager=manager)
        write(dict(zip(names, parameters_to_ndarrays(average.learnt), strict=True)), given.out)
    except (OSError, ValueError) as error:  # a TimeoutError is an OSError
        print(f"server: {error}", file=sys.stderr, flush=True)
        os._exit(1)  # gRPC's threads still wait for the client, and Python would wait for them


if __name__ == "__main__":
    main()
