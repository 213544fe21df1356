"""A rule that gives another answer on every process, because it draws from the global random generator."""

import torch


def shuffled(rewards, num_kept):
    return torch.rand(rewards.shape).argsort(dim=1)[:, :num_kept]
