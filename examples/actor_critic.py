"""Balances a pole (Gymnasium's CartPole) by an actor and a critic, over what every worker has tried by itself.

geomx run examples/actor_critic.toml
"""

from __future__ import annotations

import gymnasium
import torch
import torch.nn.functional as F
from torch import nn

import geomx

ROUNDS, EPISODES, DISCOUNT = 80, 2, 0.99


@torch.no_grad()
def play(world: gymnasium.Env, actor: nn.Module) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """One episode: what was seen, what was done, and the discounted rewards behind each."""
    seen, done, rewards, over = list[torch.Tensor](), list[int](), list[float](), False
    state = torch.as_tensor(world.reset()[0])
    while not over:
        seen.append(state)
        done.append(int(torch.distributions.Categorical(logits=actor(state)).sample()))
        found, reward, ended, cut, _ = world.step(done[-1])
        state, over, rewards = torch.as_tensor(found), ended or cut, [*rewards, float(reward)]
    for at in reversed(range(len(rewards) - 1)):
        rewards[at] += DISCOUNT * rewards[at + 1]
    return torch.stack(seen), torch.tensor(done), torch.tensor(rewards)


def main() -> None:
    run, world = geomx.join(), gymnasium.make("CartPole-v1")
    actor, critic = (nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, out)) for out in (2, 1))
    actor, of_actor = run.attach(actor, torch.optim.Adam(actor.parameters(), 5e-3), name="actor")
    critic, of_critic = run.attach(critic, torch.optim.Adam(critic.parameters(), 1e-2), name="critic")
    torch.manual_seed(1 + run.workers.index(run.name))  # each worker tries something else
    world.reset(seed=run.workers.index(run.name))

    for number in range(1, ROUNDS + 1):
        episodes = [play(world, actor) for _ in range(EPISODES)]
        states, actions, returns = (torch.cat(each) for each in zip(*episodes, strict=True))
        run.weight(len(states))
        values = critic(states).squeeze(1)
        gain = (returns - values.detach()) / (returns.std() + 1e-6)
        of_actor.zero_grad()
        of_critic.zero_grad()
        (gain * F.cross_entropy(actor(states), actions, reduction="none")).mean().backward()
        of_actor.step()
        F.smooth_l1_loss(values, returns).backward()
        of_critic.step()
        run.log(steps=len(states) / EPISODES)
        if run.is_first and number % 10 == 0:
            print(f"round {number:3d}   the pole stood for {len(states) / EPISODES:5.1f} steps", flush=True)
    run.close()


if __name__ == "__main__":
    main()
