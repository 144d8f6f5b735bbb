"""The schedule of test files for several parallel workers.

A file stays together: its fixtures, including a swarm of real processes, are made once. Half of the
workers take files from the front, where those with real processes are, and the others take them from
the end, where tests compute. So waiting and computing tests run side by side, the number of
concurrent swarms is bounded as long as there is other work, and no worker is idle before all files
are taken.
"""

from __future__ import annotations

from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

# Private here: `_assign_work_unit`: of what is next, the library lets nobody choose otherwise.


class FromBothEnds(LoadFileScheduling):
    """Files in the order of collection for the first half of the workers, at least one, and in the
    opposite order for the rest."""

    def schedule(self) -> None:
        """Assign files in this order; by itself the base class would sort them by size."""
        self.config.option.loadscopereorder = False
        super().schedule()

    def _assign_work_unit(self, node: WorkerController) -> None:
        # For a worker that died the base class queues its finished files, too. A worker that is
        # given one of them has nothing to report, and is never given anything again.
        for scope in [scope for scope, tests in self.workqueue.items() if all(tests.values())]:
            del self.workqueue[scope]
        if not self.workqueue:
            node.shutdown()
            return
        if node not in self.nodes[: max(1, len(self.nodes) // 2)]:
            self.workqueue.move_to_end(next(reversed(self.workqueue)), last=False)
        super()._assign_work_unit(node)
