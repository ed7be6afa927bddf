"""Offline packing in four steps: lengths, bins, shards, and reading the shards back (``rlvlm.data.supervised_loader``)."""

from rlvlm.data.offline_packing.bins import Bins, Budget, pack
from rlvlm.data.offline_packing.lengths import Lengths, count_lengths
from rlvlm.data.offline_packing.shards import ShardTask, load_bins, save_bins, verify_shards, write_shards

__all__ = [
    "Bins",
    "Budget",
    "Lengths",
    "ShardTask",
    "count_lengths",
    "load_bins",
    "pack",
    "save_bins",
    "verify_shards",
    "write_shards",
]
