"""Where and how a worker trains: its way to the run, and what the run says of training."""

from __future__ import annotations

from dataclasses import dataclass, field

from geomx.train.calls.collective_client import STEP, CollectiveClient
from geomx.train.data.loss import Loss
from geomx.train.data.progress import Progress
from geomx.train.data.samples import Samples
from geomx.train.settings import Settings
from geomx.train.steps.timeline import Timeline
from geomx.tree import Tree


@dataclass(slots=True)
class Planned:
    """How many steps of the policy lie behind a worker, those without data too."""

    steps: int = 0


@dataclass(frozen=True, slots=True)
class TrainingContext:
    """What `LiveRun` hands to `attach`, and `attach` to the steps. `operation`: what its contributions say they are."""

    client: CollectiveClient
    tree: Tree
    samples: Samples
    loss: Loss
    progress: Progress
    settings: Settings
    timeline: Timeline
    operation: str = STEP
    planned: Planned = field(default_factory=Planned)

    @property
    def members(self) -> tuple[str, ...]:
        """The run's workers, in order."""
        return self.tree.workers

    @property
    def party_members(self) -> tuple[str, ...]:
        """This worker's party, by rank."""
        return self.tree.party_members(self.client.name)

    @property
    def cohort(self) -> str:
        """In which this worker takes its steps."""
        return self.tree.cohort(self.client.name, self.settings.policy.sync_group)
