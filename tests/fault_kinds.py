"""One function a fault: healthy made-up rollouts of random size and noise, with the fault done to them (synthetic)."""

from __future__ import annotations

import numpy as np
from fault_worlds import World, bfloat16, rollout

Random = np.random.Generator


def plain(random: Random, **fixed: object) -> World:
    """Healthy, of random size, noise and share of sure tokens."""
    options: dict[str, object] = {
        "responses": int(random.integers(12, 48)),
        "tokens": (int(random.integers(24, 48)), int(random.integers(60, 160))),
        "noise": float(random.choice([0.003, 0.01, 0.03, 0.08])),
        "sure": float(random.uniform(0.2, 0.7)),
    }
    return rollout(random, **(options | fixed))  # type: ignore[arg-type]  # keyword arguments by name


def healthy(random: Random) -> World:
    return plain(random)


def noisy(random: Random) -> World:
    return plain(random, noise=float(random.uniform(0.1, 0.3)))


def one_sided_tail(random: Random) -> World:
    return plain(random, noise=0.1, tail=float(random.uniform(0.002, 0.03)))


def terminal(random: Random) -> World:
    return plain(random, noise=0.15, tail=float(random.uniform(0.06, 0.25)))


def wide_learner_noise(random: Random) -> World:
    """The gap is independent noise on the learner's column."""
    world = plain(random)
    world.learner = [values + random.normal(0, 0.15, len(values)) for values in world.sampler]
    return world


def wide_sampler_noise(random: Random) -> World:
    """The gap is independent noise on the sampler's column: attenuates the slope of learner on sampler."""
    world = plain(random)
    world.sampler = [values + random.normal(0, 0.15, len(values)) for values in world.learner]
    return world


def constant_offset(random: Random) -> World:
    world = plain(random, noise=0.003)
    shift = -np.log(random.uniform(0.5, 0.95))
    spread = 0.1 * shift
    world.sampler = [values + shift + random.normal(0, spread, len(values)) for values in world.learner]
    if random.random() < 0.5:
        world.settings = {"top_p": 0.9}
    return world


def nucleus(random: Random) -> World:
    top_p = float(random.choice([0.8, 0.9, 0.95]))
    world = plain(random, noise=0.01, top_p=top_p)
    if random.random() < 0.5:
        world.settings = {"top_p": top_p}
    return world


def temperatures(random: Random) -> World:
    sampler, learner = random.permutation([1.0, float(random.choice([0.5, 0.6, 0.7, 0.8, 1.2, 1.4]))])
    world = plain(random, noise=0.02, sampler_temperature=float(sampler), learner_temperature=float(learner))
    if random.random() < 0.3:
        world.settings = {"temperature": float(sampler)}
    return world


def one_context(random: Random) -> World:
    """Every token from the same context of a few words, as in C02; most fall on its likeliest word."""
    sampler, learner = random.permutation([1.0, float(random.choice([0.5, 0.7, 1.4]))])
    logits = np.sort(random.normal(0, 2, int(random.integers(4, 24))))
    left, right = (logits / t - np.log(np.exp(logits / t).sum()) for t in (learner, sampler))
    drawn = random.choice(len(logits), int(random.integers(16, 600)), p=np.exp(right))
    count = max(1, len(drawn) // 50)
    advantage = [float(value) for value in np.where(np.arange(count) % 2, 1.0, -1.0)]
    return World(random, np.array_split(left[drawn], count), np.array_split(right[drawn], count), advantage)


def raw(random: Random) -> World:
    """The learner divides by the sampling temperature, the engine reports log-probs before it did."""
    temperature = float(random.choice([0.6, 0.7, 0.8, 1.3]))
    world = plain(random, noise=0.02, learner_temperature=temperature)
    world.settings = {"temperature": temperature, "logprobs_mode": "raw_logprobs"}
    return world


def shifted(random: Random) -> World:
    world = plain(random, noise=0.02)
    way = int(random.choice([-1, 1]))
    chosen = range(world.responses) if random.random() < 0.5 else world.some(0.4)
    for row in chosen:
        world.learner[row] = np.roll(world.learner[row], -way) + random.normal(0, 0.02, len(world.learner[row]))
    return world


def shifted_far(random: Random) -> World:
    """By more tokens than a lag test tries."""
    world = plain(random, sure=float(random.uniform(0.2, 0.5)))
    way = int(random.choice([-5, -3, 3, 7]))
    world.learner = [np.roll(values, way) for values in world.learner]
    return world


def reordered(random: Random) -> World:
    """The learner's tokens are those of the responses in another order."""
    world = plain(random, sure=float(random.uniform(0.2, 0.5)))
    tokens = np.concatenate([world.learner[row] for row in random.permutation(world.responses)])
    world.learner = np.split(tokens, np.cumsum([len(values) for values in world.learner])[:-1])
    return world


def placeholders(random: Random) -> World:
    world = plain(random)
    for row in world.some(random.uniform(0.1, 0.6)):
        size = len(world.sampler[row])
        length = int(random.integers(4, size // 2))
        start = int(random.integers(2, size - length - 3))
        world.sampler[row][start : start + length] = 0.0
        world.learner[row][start : start + length] = -random.exponential(3.0, length) - 0.3
    return world


def sentinels(random: Random) -> World:
    world = plain(random)
    for row in world.some(0.3):
        world.sampler[row][5:9] = random.choice([-9999.0, -np.inf])
    return world


def appended(random: Random) -> World:
    world = plain(random)
    length = int(random.integers(1, 4))
    for row in world.some(random.uniform(0.4, 1.0)):
        world.sampler[row][-length:] = 0.0
        world.learner[row][-length:] = -random.uniform(4, 14, length)
    return world


def turn_borders(random: Random) -> World:
    world = plain(random, tokens=(100, 200))
    masks = []
    for row in range(world.responses):
        mask = np.ones(len(world.learner[row]), np.bool_)
        for start in (30, 70):
            mask[start : start + 10] = False
            if random.random() < 0.8:
                count = int(random.integers(1, 4))
                world.learner[row][start + 10 : start + 10 + count] -= random.uniform(5, 20, count)
        masks.append(mask)
    world.mask = masks
    return world


def declared_turn_borders(random: Random) -> World:
    world = turn_borders(random)
    world.mask, world.turns = None, [[0, 40, 80]] * world.responses
    return world


def coarse(random: Random) -> World:
    world = plain(random)
    world.sampler, world.learner = ([bfloat16(v) for v in side] for side in (world.sampler, world.learner))
    return world


def degenerate(random: Random) -> World:
    world = plain(random)
    level = random.uniform(4, 12)
    whole = random.random() < 0.5
    for row in world.some(random.uniform(0.1, 0.6)):
        size = len(world.sampler[row])
        start = 0 if whole else size // 3
        world.sampler[row][start:] = 0.0
        world.learner[row][start:] = -level + random.normal(0, 0.05 * level, size - start)
    return world


def broken(random: Random) -> World:
    world = plain(random)
    depth = random.uniform(2, 8)
    for row in world.some(random.uniform(0.08, 0.3)):
        size = len(world.learner[row])
        world.learner[row] = world.sampler[row] - depth + random.normal(0, 0.5, size)
    return world


def engine(random: Random) -> World:
    world = plain(random, responses=64)
    count = int(random.integers(3, 8))
    world.engines = [f"engine-{row % count}" for row in range(64)]
    for row in range(1, 64, count):
        noise = random.normal(0, random.uniform(0.3, 0.8), len(world.learner[row]))
        world.learner[row] = world.learner[row] + noise
    return world


def versions(random: Random) -> World:
    world = plain(random)
    world.versions = [int(version) for version in random.integers(5, 9, world.responses)]
    return world


def padding(random: Random) -> World:
    world = plain(random)
    for row in world.some(random.uniform(0.1, 0.4)):
        size = len(world.learner[row])
        world.learner[row], world.sampler[row] = np.zeros(size), np.zeros(size)
        world.advantage[row] = 0.0
    return world


def one_worders(random: Random) -> World:
    world = plain(random)
    for row in world.some(random.uniform(0.2, 0.5)):
        count = int(random.integers(1, 4))
        world.sampler[row] = world.sampler[row][:count]
        world.learner[row] = world.sampler[row] - random.uniform(0.0, 3.0)
    return world


def routing(random: Random) -> World:
    world = plain(random)
    share = random.uniform(0.03, 0.2)
    for row in range(world.responses):
        size = len(world.learner[row])
        jump = np.where(random.random(size) < share, random.choice([-1.0, 1.0], size) * random.uniform(2, 7, size), 0.0)
        world.sampler[row] = world.sampler[row] - np.where(jump > 0, jump, 0.0)
        world.learner[row] = world.learner[row] + np.where(jump < 0, jump, 0.0)
    return world


def same_array(random: Random) -> World:
    world = plain(random)
    world.learner = [values.copy() for values in world.sampler]
    return world


def missing_numbers(random: Random) -> World:
    world = plain(random)
    for row in world.some(0.2):
        world.sampler[row][:] = np.nan
    return world
