"""Loaders that someone else made: what is known of them."""

from torch.utils.data import BatchSampler, DataLoader
from torch.utils.data.distributed import DistributedSampler

from train_anywhere.data.torch.user_loader import is_sharded


class Buckets(BatchSampler):
    """A batch sampler of someone's own."""


def test_a_sampler_within_a_batch_sampler_shares_the_rows() -> None:
    sampler = DistributedSampler(range(8), num_replicas=2, rank=0)
    loader = DataLoader(range(8), batch_sampler=Buckets(sampler, 2, drop_last=False))
    assert is_sharded(loader, 2) and not is_sharded(loader, 4)
