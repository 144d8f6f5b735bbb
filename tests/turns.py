"""Who runs which test file where several workers run side by side.

A file stays together: its fixtures, a swarm of real processes among them, are made once. Half of the
workers take files from the front, where those with real processes stand, and the others take them from
the end, where tests compute. So what waits is beside what computes, no more than so many swarms are
there at once as long as there is anything else to do, and nobody is idle before all files are taken.
"""

from __future__ import annotations

from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

# Private here: `_assign_work_unit`: of what is next, the library lets nobody choose otherwise.


class FromBothEnds(LoadFileScheduling):
    """Files in the order of collection for the first half of the workers, one at least, in the opposite
    order for the rest."""

    def schedule(self) -> None:
        """Hand out files, in this order; by itself the base class would sort them by their size."""
        self.config.option.loadscopereorder = False
        super().schedule()

    def _assign_work_unit(self, node: WorkerController) -> None:
        # Of a worker that died the base class queues the files that it had finished, too. Whoever is
        # given one of them has nothing to report, and is never given anything again.
        for scope in [scope for scope, tests in self.workqueue.items() if all(tests.values())]:
            del self.workqueue[scope]
        if not self.workqueue:
            node.shutdown()
            return
        if node not in self.nodes[: max(1, len(self.nodes) // 2)]:
            self.workqueue.move_to_end(next(reversed(self.workqueue)), last=False)
        super()._assign_work_unit(node)
