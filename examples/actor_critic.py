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


def play(world: gymnasium.Env, actor: nn.Module) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """One episode: what was seen, what was done, and the discounted rewards behind each."""
    seen, done, rewards, over = [world.reset()[0]], list[int](), list[float](), False
    while not over:
        odds = torch.distributions.Categorical(logits=actor(torch.as_tensor(seen[-1])))
        done.append(int(odds.sample()))
        state, reward, ended, cut, _ = world.step(done[-1])
        seen.append(state)
        rewards.append(float(reward))
        over = ended or cut
    for at in reversed(range(len(rewards) - 1)):
        rewards[at] += DISCOUNT * rewards[at + 1]
    return (
        torch.stack([torch.as_tensor(state) for state in seen[:-1]]),
        torch.tensor(done),
        torch.tensor(rewards),
    )


def main() -> None:
    torch.manual_seed(0)
    run, world = geomx.join(), gymnasium.make("CartPole-v1")
    actor, critic = (nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, out)) for out in (2, 1))
    actor, of_actor = run.attach(actor, torch.optim.Adam(actor.parameters(), 5e-3), name="actor")
    critic, of_critic = run.attach(critic, torch.optim.Adam(critic.parameters(), 1e-2), name="critic")
    torch.manual_seed(1 + run.workers.index(run.name))  # each worker tries something else
    world.reset(seed=run.workers.index(run.name))

    for number in range(1, ROUNDS + 1):
        with torch.no_grad():
            episodes = [play(world, actor) for _ in range(EPISODES)]
        states, actions, returns = (torch.cat(each) for each in zip(*episodes, strict=True))
        run.weight(len(states))
        values = critic(states).squeeze(1)
        gain = (returns - values.detach()) / (returns.std() + 1e-6)
        of_actor.zero_grad()
        (gain * F.cross_entropy(actor(states), actions, reduction="none")).mean().backward()
        of_actor.step()
        of_critic.zero_grad()
        F.smooth_l1_loss(values, returns).backward()
        of_critic.step()
        stood = len(states) / EPISODES
        run.log(steps=stood)
        if run.is_first and number % 10 == 0:
            print(f"round {number:3d}   the pole stood for {stood:5.1f} steps", flush=True)
    run.close()


if __name__ == "__main__":
    main()
