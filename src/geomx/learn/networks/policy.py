"""Policy gradient (REINFORCE): what was done counts for more, the more reward came behind it.

    L = - mean over steps t of  A_t log pi(a_t | s_t)
    A_t = (R_t - mean R) / std R,     R_t = sum_k discount^k r_{t+k}

Each worker has an environment of its own, unlike others' perhaps, and all have one policy. A worker's steps count as
many as they are. What travels: see `base.py`, and in each round three sums of R_t; what was seen and done stays at
home. Source: Williams, Machine
Learning 8 (1992).
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any, Self

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted
from torch import nn

from geomx.learn.agreement import begin
from geomx.learn.networks.base import Network, attached
from geomx.learn.over import Over


@dataclass(eq=False, repr=False)
class PolicyGradient(Network):
    """For environments of Gymnasium with numbers to see and one of several things to do. See the module's text.

    Args:
        hidden: Units of the hidden layer.
        rounds: How many steps of the optimizer.
        episodes: That each worker plays for a step.
        discount: What a reward one step later is worth.
        learning_rate: As of `Network`, and so are the others.

    Attributes:
        returns_: Of each round, the mean of what this worker's episodes gained.
    """

    hidden: int = 64
    _: KW_ONLY
    rounds: int = 100
    episodes: int = 4
    discount: float = 0.99
    learning_rate: float = 1e-2

    def fit(self, X: Any, y: Any = None, run: Any = None) -> Self:  # noqa: N803
        """Train in the environments of all workers.

        Args:
            X: This worker's environment, a `gymnasium.Env`.
            y: Nothing.
            run: The run, in which every worker makes this call; None: this is the one environment.

        Returns:
            Itself, the same on all workers.

        Raises:
            ValueError: There is something else to see or to do.
        """
        if not hasattr(X.action_space, "n") or len(X.observation_space.shape or ()) != 1:
            raise ValueError(
                f"{X.observation_space} and {X.action_space}: needs a row of numbers, and choices"
            )
        seen, choices = X.observation_space.shape[0], int(X.action_space.n)
        module = self._made(
            lambda: nn.Sequential(nn.Linear(seen, self.hidden), nn.Tanh(), nn.Linear(self.hidden, choices))
        )
        self.module_, optimizer = attached(run, module, self._optimizer(module))
        place = 0 if run is None else run.workers.index(run.name)
        draws = torch.Generator().manual_seed(self.random_state + place)  # each tries something else
        X.reset(seed=self.random_state + place)
        self.returns_: list[float] = []
        over = Over(run)
        begin(over, self)
        for _ in range(self.rounds):
            played = [self._played(X, draws) for _ in range(self.episodes)]
            states, actions, returns = (torch.cat(each) for each in list(zip(*played, strict=True))[:3])
            gained = sum(each[3] for each in played)
            own = returns.double()
            sums = over.total(np.array([float(own.sum()), float((own**2).sum()), len(own)]))[0]
            mean = sums[0] / sums[2]
            deviation = max(sums[1] / sums[2] - mean**2, 0.0) ** 0.5
            gain = self._tensor((own - mean) / (deviation + 1e-6))
            if run is not None:
                run.weight(len(states))
            optimizer.zero_grad()
            chances = self.module_(self._tensor(states)).log_softmax(1)
            taken = chances.gather(1, actions.to(self.device)[:, None])[:, 0]
            (-(gain * taken).mean()).backward()
            optimizer.step()
            self.returns_.append(gained / self.episodes)
        return self

    def predict(self, X: Any) -> Any:  # noqa: N803
        """What to do in each state [states, numbers]: what is most probable."""
        check_is_fitted(self)
        return self._outputs(X).argmax(1)

    def score(self, X: Any, y: Any = None, *, episodes: int = 20) -> float:  # noqa: N803
        """What an episode gains on the average, in an environment that begins as seeds 0, 1, ... have it."""
        gained = 0.0
        for seed in range(episodes):
            state, is_over = X.reset(seed=seed)[0], False
            while not is_over:
                state, reward, ended, cut, _ = X.step(int(self.predict(state[None])[0]))
                gained, is_over = gained + float(reward), ended or cut
        return gained / episodes

    @torch.no_grad()
    def _played(
        self, world: Any, draws: torch.Generator
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, float]:
        """An episode: what was seen, what was done, the discounted rewards behind each, and all rewards."""
        seen, done, rewards, is_over = list[Any](), list[int](), list[float](), False
        state = world.reset()[0]
        while not is_over:
            seen.append(np.asarray(state, np.float32))
            chances = self.module_(self._tensor(seen[-1][None])).softmax(1).cpu()
            done.append(int(torch.multinomial(chances[0], 1, generator=draws)))
            state, reward, ended, cut, _ = world.step(done[-1])
            rewards.append(float(reward))
            is_over = ended or cut
        gained = sum(rewards)
        for at in reversed(range(len(rewards) - 1)):
            rewards[at] += self.discount * rewards[at + 1]
        return torch.from_numpy(np.stack(seen)), torch.tensor(done), torch.tensor(rewards), gained
