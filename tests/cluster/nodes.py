"""A Ray cluster of several nodes on this machine, of one core each, on loopback.

`python -m tests.cluster.nodes COUNT` prints its address when all nodes have joined. For each line
on stdin it kills one node, not the head, and prints the ids of the nodes that are left. It ends the
cluster when stdin ends.
"""

from __future__ import annotations

import sys
from typing import Any

from ray.cluster_utils import Cluster


def main(count: int) -> None:
    node: dict[str, Any] = {
        "num_cpus": 1,
        "object_store_memory": 100 * 2**20,
        "include_log_monitor": False,
    }
    head = {**node, "include_dashboard": False, "no_monitor": True}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    others = [cluster.add_node(**node, wait=False) for _ in range(count - 1)]
    cluster.wait_for_nodes()
    print(cluster.address, flush=True)
    for _ in sys.stdin:
        cluster.remove_node(others.pop(), allow_graceful=False)
        print(1 + len(others), flush=True)
    cluster.shutdown()


if __name__ == "__main__":
    main(int(sys.argv[1]))
