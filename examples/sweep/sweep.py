"""A table of models by budgets, one plan a cell, here or on the workers of a Dask cluster.

python -m examples.sweep.sweep OUT --models FILE... --budgets 60% 80%... [--workers N | --scheduler ADDRESS]

Dask gives a cell of a worker that died to another one. Each row is written when it is there; started again, a sweep
makes only the rows that are missing. Needs the extra `sweep`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ckplan
from ckplan.errors import CkplanError

if TYPE_CHECKING:
    from distributed import Client

Cell = tuple[str, str]
"""A model's file and a budget."""
Row = dict[str, Any]
STRATEGY = "memory"
"""It looks for no longer than it has to: the same plan on a slow machine as on a fast one."""


def plan(cell: Cell) -> Row:
    """Plan one model for one budget; a budget that no plan keeps to is an answer as well."""
    model, budget = cell
    row: Row = {"model": model, "budget": budget}
    try:
        planned = ckplan.rewrite(model, budget=budget, strategy=STRATEGY)
    except CkplanError as error:
        return {**row, "error": str(error)}
    return {**row, "peak_activations": planned.after.peak_activations, "overhead": planned.plan.overhead}


def here(cells: Sequence[Cell]) -> Iterator[Row]:
    """Make rows one after the other in this process."""
    return map(plan, cells)


def on(client: Client) -> Callable[[Sequence[Cell]], Iterator[Row]]:
    """Make rows on the workers of a cluster; they come in the order in which they are ready."""

    def rows(cells: Sequence[Cell]) -> Iterator[Row]:
        from distributed import as_completed

        futures = client.map(plan, cells, pure=False)
        return (row for _, row in as_completed(futures, with_results=True))

    return rows


def sweep(cells: Sequence[Cell], out: Path, made: Callable[[Sequence[Cell]], Iterator[Row]] = here) -> list[Row]:
    """Fill a table.

    Args:
        cells: what is asked for.
        out: a file of JSON lines; rows in it are not made again.
        made: who makes rows.

    Returns:
        The rows of all cells, in their order.
    """
    rows: dict[Cell, Row] = {}
    for line in out.read_text(encoding="utf-8").splitlines() if out.exists() else ():
        try:
            row = json.loads(line)
        except ValueError:  # the last line of a sweep that was killed
            continue
        rows[row["model"], row["budget"]] = row
    missing = [cell for cell in cells if cell not in rows]
    with out.open("a", encoding="utf-8") as file:
        file.write("\n" if rows else "")
        for row in made(missing):
            rows[row["model"], row["budget"]] = row
            file.write(f"{json.dumps(row)}\n")
            file.flush()
    return [rows[cell] for cell in cells]


def main() -> None:
    """Read the command line, fill the table and print it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--models", nargs="+", required=True)
    parser.add_argument("--budgets", nargs="+", required=True)
    place = parser.add_mutually_exclusive_group()
    place.add_argument("--workers", type=int, help="processes on this machine")
    place.add_argument("--scheduler", help="address of a Dask scheduler")
    given = parser.parse_args()
    cells = [(model, budget) for model in given.models for budget in given.budgets]
    if given.workers is None and given.scheduler is None:
        table = sweep(cells, given.out)
    else:
        from distributed import Client, LocalCluster

        where = given.scheduler or LocalCluster(n_workers=given.workers, threads_per_worker=1, dashboard_address=None)
        with Client(where) as client:
            table = sweep(cells, given.out, on(client))
    for row in table:
        told = row.get("error") or f"{row['peak_activations']:,} bytes, {row['overhead']:+.1%}"
        print(f"{row['model']}  {row['budget']:>5}  {told}")


if __name__ == "__main__":
    main()
