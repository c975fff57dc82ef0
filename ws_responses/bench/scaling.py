"""How many nodes and how much Redis a load takes: a model of a few lines, on costs that were measured.

``python -m ws_responses bench scaling`` prints it; ``--measure`` measures the costs anew. docs/explanation/scaling.md explains it.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from math import ceil
from pathlib import Path
from typing import Any, Final

NUMBERS: Final = Path(__file__).with_name("scaling.json")
"""The costs that were measured last, and on what."""

_MILLION: Final = 1e6
_GIB: Final = 1024**3
_BITS: Final = 8


@dataclass(frozen=True, kw_only=True)
class Costs:
    """What one of each costs; ``scaling_measure`` says how that is measured.

    Attributes:
        connection_kib: Resident memory of an idle connection, the server's own included.
        connection_us_per_s: CPU of an idle connection.
        turn_us: CPU of a turn whose answer has two events, without a shared store.
        shared_turn_us: The same with the store (``durable``), the counters and the settlement sink on Redis.
        event_us: CPU of a further event.
        kept_kb_per_kb: Memory of a node for each kB of history.
        redis_turn_us: CPU of Redis for such a turn of 4 kB.
        redis_turn_commands: Commands for it, those within scripts included.
        redis_turn_in_bytes: Bytes to Redis for it.
        redis_turn_out_bytes: Bytes from Redis for it.
        redis_record_bytes: Memory of Redis for a stored turn, beside its content.
        redis_kb_per_kb: Memory of Redis for each kB of its content (text, compressed).
        load_us: CPU of a node for each 100 kB of a chain that it loads.
        redis_load_us: CPU of Redis likewise.
    """

    connection_kib: float
    connection_us_per_s: float
    turn_us: float
    shared_turn_us: float
    event_us: float
    kept_kb_per_kb: float
    redis_turn_us: float
    redis_turn_commands: float
    redis_turn_in_bytes: float
    redis_turn_out_bytes: float
    redis_record_bytes: float
    redis_kb_per_kb: float
    load_us: float
    redis_load_us: float


@dataclass(frozen=True, kw_only=True)
class Load:
    """What is to be served, and by machines of what kind: the assumptions.

    Attributes:
        connections: Open at once.
        turns_per_s: Of all connections together.
        events_per_turn: Events of an answer: about its tokens, unless the backend joins them.
        turn_kb: New content of a turn, input and output.
        history_kb: What a node keeps for a connection, on average.
        stored: Part of the turns that are stored; the others stay in their connection.
        ttl_s: How long a stored chain lives after its last turn.
        age_s: Age of a connection at which its client connects again, and its chain is loaded on another node.
        node_cores: Cores of a node; each runs one process.
        node_gib: Memory of a node.
        shard_gib: Memory of a Redis server.
        busy: Part of the CPU that may be used: the rest is for peaks, and for the nodes that are down.
        full: Part of the memory that may be used, likewise.
    """

    connections: int = 1_000_000
    turns_per_s: int = 100_000
    events_per_turn: int = 100
    turn_kb: float = 4.0
    history_kb: float = 100.0
    stored: float = 1.0
    ttl_s: float = 3600.0
    age_s: float = 3600.0
    node_cores: int = 16
    node_gib: float = 64.0
    shard_gib: float = 32.0
    busy: float = 0.5
    full: float = 0.7


@dataclass(frozen=True)
class Plan:
    """What a load takes.

    Attributes:
        load: The load.
        nodes: Nodes needed for each resource, before rounding.
        shards: Redis servers needed for each resource, before rounding; their replicas come on top.
        redis_gib: Memory of all of Redis.
        redis_mbit_per_s: Traffic to and from it.
        redis_commands_per_s: Its commands.
        tenant_turns_per_s: What one tenant may have at most: all its keys are on one server.
    """

    load: Load
    nodes: Mapping[str, float]
    shards: Mapping[str, float]
    redis_gib: float
    redis_mbit_per_s: float
    redis_commands_per_s: float
    tenant_turns_per_s: float


def plan(load: Load, costs: Costs) -> Plan:
    """Return what a load takes at these costs."""
    turns, reloads = load.turns_per_s, load.connections / load.age_s * load.history_kb / 100
    shared = turns * load.stored
    node_cpu = (
        turns * (costs.turn_us + (load.events_per_turn - 2) * costs.event_us)
        + shared * (costs.shared_turn_us - costs.turn_us)
        + load.connections * costs.connection_us_per_s
        + reloads * costs.load_us
    ) / _MILLION
    node_bytes = load.connections * (costs.connection_kib * 1024 + load.history_kb * 1000 * costs.kept_kb_per_kb)
    size = load.turn_kb / 4
    redis_cpu = (shared * costs.redis_turn_us + reloads * costs.redis_load_us) / _MILLION
    record = costs.redis_record_bytes + load.turn_kb * 1000 * costs.redis_kb_per_kb
    redis_bytes = shared * load.ttl_s * record
    traffic = shared * (costs.redis_turn_in_bytes * size + costs.redis_turn_out_bytes) + reloads * 100_000
    return Plan(
        load=load,
        nodes={
            "CPU": node_cpu / load.busy / load.node_cores,
            "memory": node_bytes / _GIB / load.full / load.node_gib,
        },
        shards={
            "CPU": redis_cpu / load.busy,
            "memory": redis_bytes / _GIB / load.full / load.shard_gib,
        },
        redis_gib=redis_bytes / _GIB,
        redis_mbit_per_s=traffic * _BITS / _MILLION,
        redis_commands_per_s=shared * costs.redis_turn_commands,
        tenant_turns_per_s=_MILLION / costs.redis_turn_us * load.busy,
    )


SIZES: Final = (Load(connections=10_000, turns_per_s=1_000), Load(connections=100_000, turns_per_s=10_000), Load())
"""What the page shows."""


def costs_text(costs: Costs) -> str:
    """Return the measured costs as a table."""
    return "\n".join(f"{name:24} {value:10,.2f}" for name, value in asdict(costs).items())


def plans_text(plans: Sequence[Plan]) -> str:
    """Return plans side by side."""
    rows: list[tuple[str, list[str]]] = [
        ("connections", [f"{each.load.connections:,}" for each in plans]),
        ("turns a second", [f"{each.load.turns_per_s:,}" for each in plans]),
        *_needs("nodes", [each.nodes for each in plans]),
        *_needs("Redis servers", [each.shards for each in plans]),
        ("Redis memory, GiB", [f"{each.redis_gib:,.1f}" for each in plans]),
        ("Redis traffic, Mbit/s", [f"{each.redis_mbit_per_s:,.0f}" for each in plans]),
        ("Redis commands a second", [f"{each.redis_commands_per_s:,.0f}" for each in plans]),
        ("turns/s of one tenant, at most", [f"{each.tenant_turns_per_s:,.0f}" for each in plans]),
    ]
    return "\n".join(f"{title:32}" + "".join(f"{value:>14}" for value in values) for title, values in rows)


def _needs(title: str, needs: Sequence[Mapping[str, float]]) -> list[tuple[str, list[str]]]:
    rows = [(title, [f"{ceil(max(each.values())):,}" for each in needs])]
    rows += [(f"  for their {name}", [f"{each[name]:,.2f}" for each in needs]) for name in needs[0]]
    return [*rows, ("  which ends first", [max(each, key=each.__getitem__) for each in needs])]


def read_costs(path: Path = NUMBERS) -> tuple[Costs, Mapping[str, Any]]:
    """Return the costs that were measured last, and on what."""
    kept = json.loads(path.read_text())
    return Costs(**kept["costs"]), kept["measured"]


def main(arguments: Sequence[str]) -> int:
    """Print the model, or measure its numbers; return the exit code."""
    options = _parser().parse_args(arguments)
    if options.measure:
        from ws_responses.bench.scaling_measure import measure

        return measure(NUMBERS if options.out is None else options.out, quick=options.quick)
    costs, measured = read_costs(options.numbers)
    given = {field.name: getattr(options, field.name) for field in fields(Load)}
    asked = {name: value for name, value in given.items() if value is not None}
    print(f"measured {', '.join(f'{name}: {value}' for name, value in measured.items())}\n", file=sys.stderr)
    print(costs_text(costs))
    print()
    print(plans_text([plan(load, costs) for load in ([Load(**asked)] if asked else SIZES)]))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m ws_responses bench scaling", description="Say how many nodes and how much Redis a load takes."
    )
    for field in fields(Load):
        kind = int if field.type is int or field.type == "int" else float
        parser.add_argument(
            f"--{field.name.replace('_', '-')}", type=kind, metavar="N", help=f"default {field.default:,}"
        )
    parser.add_argument("--numbers", type=Path, default=NUMBERS, metavar="FILE", help="costs that you have measured")
    parser.add_argument("--measure", action="store_true", help="measure the costs; needs redis-server or valkey-server")
    parser.add_argument("--out", type=Path, metavar="FILE", help="where the measured costs go")
    parser.add_argument("--quick", action="store_true", help="measure little: a look, not a result")
    return parser
